//! Latents in a file, for other programs and for tests.

use std::io::Write;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::error::{Error, Result};
use crate::output::{check_file, persist, temporary_beside};
use crate::picture::Picture;

/// A `.safetensors` file with one tensor `latents`, f32, `(n, c, h, w)`: what diffusers gives for
/// `output_type="latent"`.
pub struct LatentsFile {
    path: PathBuf,
    latents: Vec<Tensor>,
}

impl LatentsFile {
    /// Plans a file at `path`; one that is there will be replaced.
    ///
    /// # Errors
    /// [`Error::NotFound`] where its folder is missing, [`Error::Write`] where it takes no files, [`Error::Value`] where
    /// `path` is a folder or has another ending: a file is replaced without a question, so it must not be a picture.
    pub fn plan(path: &Path) -> Result<Self> {
        check_file("--latents-out", path, "the latents")?;
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            let expected = "a name that ends in .safetensors, the one format that is written".into();
            return Err(Error::Value { name: "--latents-out", found: format!("'{}'", path.display()), expected });
        }
        Ok(Self { path: path.to_path_buf(), latents: Vec::new() })
    }

    /// Adds a picture's latents.
    pub fn push(&mut self, picture: &Picture) {
        self.latents.push(picture.latents.clone());
    }

    /// Writes the file; it appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(self) -> Result<()> {
        let latents = Tensor::cat(&self.latents, 0)?;
        let bytes: Vec<u8> =
            latents.flatten_all()?.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes()).collect();
        let failed = |error: safetensors::SafeTensorError| Error::write(&self.path)(std::io::Error::other(error));
        let view = TensorView::new(Dtype::F32, latents.dims().to_vec(), &bytes).map_err(failed)?;
        let bytes = safetensors::serialize([("latents", view)], None).map_err(failed)?;
        let mut file = temporary_beside(&self.path)?;
        file.write_all(&bytes).map_err(Error::write(&self.path))?;
        persist(file, &self.path)
    }
}
