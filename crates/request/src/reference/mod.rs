//! Reference images of a request: images that the denoiser sees as tokens next to those of the result (FLUX.1 Kontext).

mod size;

use std::path::Path;
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Rgb8Image};
use kiln_models::{ExtraChannels, ModelFolder};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::input::{FittedInput, fitted, read_reference};
use crate::options::{ImageOptions, ModelFeature, OptionSet, Request};
use crate::settings::InputFile;
pub use size::ReferenceSize;
use size::fitted_size;

/// The most reference images of a request.
const MAX_REFERENCES: usize = 16;

/// The most reference images of a request for `model`: 0 if it takes none, and 1 if it takes a control image.
pub fn most_references(model: &ModelFolder) -> usize {
    match model.extra_channels() {
        _ if !ModelFeature::References.is_of(model) => 0,
        ExtraChannels::Control => 1,
        _ => MAX_REFERENCES,
    }
}

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
    /// Reads the reference images, and gives them the sizes in which `model` sees them: by its rule, or `results`, width and height
    /// of the results, for a control image. `input` is the input image as the denoiser's encoder sees it.
    ///
    /// # Errors
    /// [`Error::Value`] for a wrong number of images, and errors of the files.
    pub(crate) fn prepare_references(
        &self,
        model: &ModelFolder,
        results: (usize, usize),
        input: Option<&FittedInput>,
    ) -> Result<Vec<Reference>> {
        let (count, size) = (self.references.len(), self.reference_size.unwrap_or_default());
        if count > MAX_REFERENCES {
            let expected = format!("at most {MAX_REFERENCES} images");
            return Err(Error::Value { name: "references", found: count.to_string(), expected });
        }
        let is_control = model.extra_channels() == ExtraChannels::Control;
        if is_control && count != 1 {
            let expected = format!("one image: {} takes a control image, such as edges or depth", model.name());
            return Err(Error::Value { name: "references", found: count.to_string(), expected });
        }
        let resize = ImageOptions::of(self).resize_mode;
        // Models that take none were refused before.
        let Some(sizes) = model.family().references() else { return Ok(Vec::new()) };
        let one = |(i, path): (usize, &std::path::PathBuf)| {
            let (image, file) = read_reference(path, format!("references[{i}].image"))?;
            let image = image.into_rgb(AlphaRule::Drop);
            if is_control {
                let image = fitted(&image, resize, results, input)?;
                return Ok(Reference { size, image: Arc::new(image), file: Some(file) });
            }
            let sizes = fitted_size(sizes, size, image.size(), model.size_multiple());
            let [width, height] = sizes.resized;
            let image = image.resize(width, height, Filter::Lanczos3)?;
            let [width, height] = sizes.result;
            let image = image.resize_to(sizes.mode, width, height, Filter::Lanczos3)?;
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
