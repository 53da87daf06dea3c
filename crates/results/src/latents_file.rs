//! A file with latents, for other programs and for tests.

use std::path::Path;

use candle_core::Tensor;
use kiln_files::{FileRules, PlannedFile};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::generated_image::GeneratedImage;
use kiln_setup::error::{Error, Result};

/// A `.safetensors` file with one tensor `latents`, f32, `(n, c, h, w)`, as in diffusers with `output_type="latent"`.
pub struct LatentsFile {
    file: PlannedFile,
    latents: Vec<Tensor>,
}

impl LatentsFile {
    /// Plans a file at `path`; an existing file will be replaced.
    ///
    /// # Errors
    /// See [`PlannedFile`]: the folder is missing or not writable, or the name is a folder's or has another
    /// extension than `.safetensors`.
    pub fn plan(path: &Path) -> Result<Self> {
        let what = "the latents";
        let rules = FileRules { field: "latents_out", what, extensions: &["safetensors"], overwrite: true };
        Ok(Self { file: PlannedFile::plan(path, rules)?, latents: Vec::new() })
    }

    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.file
    }

    /// Adds an image's latents.
    pub fn push(&mut self, image: &GeneratedImage) {
        self.latents.push(image.latents.clone());
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn write(self) -> Result<()> {
        let latents = Tensor::cat(&self.latents, 0)?;
        let bytes: Vec<u8> =
            latents.flatten_all()?.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes()).collect();
        let failed = |error: safetensors::SafeTensorError| Error::write(self.file.path())(std::io::Error::other(error));
        let view = TensorView::new(Dtype::F32, latents.dims().to_vec(), &bytes).map_err(failed)?;
        let bytes = safetensors::serialize([("latents", view)], None).map_err(failed)?;
        Ok(self.file.write(|to| to.write_all(&bytes))?)
    }
}
