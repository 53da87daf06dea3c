//! Latents in a file, for other programs and for tests.

use std::io::Write;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::error::{Error, Result};
use crate::output::{persist, temporary_beside};
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
    /// [`Error::NotFound`] where its folder is missing, [`Error::Value`] where `path` is a folder.
    pub fn plan(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let expected = "a file's name; this is a folder".into();
            return Err(Error::Value { name: "--latents-out", found: path.display().to_string(), expected });
        }
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
                let looked_for = "a folder for the latents; make it first".into();
                Err(Error::NotFound { path: parent.to_path_buf(), looked_for })
            }
            _ => Ok(Self { path: path.to_path_buf(), latents: Vec::new() }),
        }
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
