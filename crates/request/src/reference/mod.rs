//! Reference images of a request: images that the denoiser sees as tokens next to those of the result (FLUX.1 Kontext).

mod size;

use std::path::Path;
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Rgb8Image};
use kiln_models::ModelFolder;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::input::read_reference;
use crate::options::Request;
use crate::settings::InputFile;
pub use size::ReferenceSize;
use size::fitted_size;

/// The most reference images of a request.
const MAX_REFERENCES: usize = 16;

/// A reference image of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reference {
    /// The rule that its size is by.
    pub size: ReferenceSize,
    /// Red, green and blue in the size in which the denoiser sees it.
    #[serde(skip)]
    pub image: Arc<Rgb8Image>,
    /// The image's file without its folder, if the request names one.
    #[serde(skip)]
    pub file: Option<InputFile>,
}

impl Request {
    /// Reads the reference images, and gives them the sizes in which `model` sees them.
    ///
    /// # Errors
    /// [`Error::Value`] for too many images, and errors of the files.
    pub(crate) fn prepare_references(&self, model: &ModelFolder) -> Result<Vec<Reference>> {
        let (count, size) = (self.references.len(), self.reference_size.unwrap_or_default());
        if count > MAX_REFERENCES {
            let expected = format!("at most {MAX_REFERENCES} images");
            return Err(Error::Value { name: "references", found: count.to_string(), expected });
        }
        // Models that take none were refused before.
        let Some(sizes) = model.family().references() else { return Ok(Vec::new()) };
        let one = |(i, path): (usize, &std::path::PathBuf)| {
            let (image, file) = read_reference(path, format!("references[{i}].image"))?;
            let image = image.into_rgb(AlphaRule::Drop);
            let fitted = fitted_size(sizes, size, image.size(), model.size_multiple());
            let [width, height] = fitted.resized;
            let image = image.resize(width, height, Filter::Lanczos3)?;
            let [width, height] = fitted.result;
            let image = image.resize_to(fitted.mode, width, height, Filter::Lanczos3)?;
            Ok(Reference { size, image: Arc::new(image), file: Some(file) })
        };
        self.references.iter().enumerate().map(one).collect()
    }
}

impl Reference {
    /// A reference image in the size in which the denoiser sees it, whose sides are multiples of the model's.
    pub fn new(image: Rgb8Image) -> Self {
        Self { size: ReferenceSize::Own, image: Arc::new(image), file: None }
    }

    /// The name of its file without the folder.
    pub(crate) fn name(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| Path::new(&file.file.name))
    }
}
