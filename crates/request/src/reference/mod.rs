//! Reference images of a request: images that the denoiser sees as tokens next to those of the result (FLUX.1 Kontext), and the text
//! encoder too (Qwen-Image-Edit).

mod size;

use std::path::Path;
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Rgb8Image};
use kiln_models::{ExtraChannels, ModelFolder};
use kiln_network::text::PromptImage;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::input::{FittedInput, fitted, read_reference};
use crate::options::{ImageOptions, OptionSet, Request};
use crate::settings::InputFile;
pub use size::ReferenceSize;
use size::{Fitted, fitted_size};

/// The most reference images of a request.
const MAX_REFERENCES: usize = 16;

/// The most reference images of a request for `model`: 0 if it takes none, and 1 if it takes a control image.
pub fn most_references(model: &ModelFolder) -> usize {
    match (model.references(), model.extra_channels()) {
        (None, _) => 0,
        (Some(_), ExtraChannels::Control) => 1,
        (Some(rule), _) => rule.most.min(MAX_REFERENCES),
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
    /// Width and height of the image before it was resized.
    #[serde(skip)]
    pub original: (usize, usize),
    /// The image in the size in which the text encoder sees it, if it sees any.
    #[serde(skip)]
    pub text: Option<PromptImage>,
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
        let is_control = model.extra_channels() == ExtraChannels::Control;
        if is_control && count != 1 {
            let expected = format!("one image: {} takes a control image, such as edges or depth", model.name());
            return Err(Error::Value { name: "references", found: count.to_string(), expected });
        }
        let most = most_references(model).max(1); // models that take none were refused before
        if count > most {
            let expected = if most == 1 { "one image".into() } else { format!("at most {most} images") };
            return Err(Error::Value { name: "references", found: count.to_string(), expected });
        }
        let resize = ImageOptions::of(self).resize_mode;
        let Some(rule) = model.references() else { return Ok(Vec::new()) };
        let one = |(i, path): (usize, &std::path::PathBuf)| {
            let (image, file) = read_reference(path, format!("references[{i}].image"))?;
            let image = image.into_rgb(AlphaRule::Drop);
            let original = image.size();
            if is_control {
                let image = fitted(&image, resize, results, input)?;
                return Ok(Reference { size, image: Arc::new(image), original, text: None, file: Some(file) });
            }
            let sized =
                |sizes, choice| in_size(&image, fitted_size(sizes, choice, image.size(), model.size_multiple()));
            let text = rule.text.map(|sizes| sized(sizes, ReferenceSize::Model)).transpose()?.map(PromptImage::new);
            Ok(Reference { size, image: sized(rule.sizes, size)?, original, text, file: Some(file) })
        };
        self.references.iter().enumerate().map(one).collect()
    }
}

/// The image in a size.
fn in_size(image: &Rgb8Image, sizes: Fitted) -> Result<Arc<Rgb8Image>> {
    let [width, height] = sizes.resized;
    let image = image.resize(width, height, Filter::Lanczos3)?;
    let [width, height] = sizes.result;
    Ok(Arc::new(image.resize_to(sizes.mode, width, height, Filter::Lanczos3)?))
}

/// The size, width and height, of a result whose request has none: that of the last reference image in the model's size, for models whose
/// text encoder sees the images (diffusers' pipelines of Qwen-Image-Edit). `None` for other models.
pub(crate) fn size_of_result(model: &ModelFolder, references: &[Reference]) -> Option<(usize, usize)> {
    let sizes = model.references().filter(|rule| rule.text.is_some())?.sizes;
    let size = references.last()?.original;
    let [width, height] = fitted_size(sizes, ReferenceSize::Model, size, model.size_multiple()).result;
    Some((width, height))
}

impl Reference {
    /// A reference image in the size in which the denoiser sees it, whose sides are multiples of the model's.
    pub fn new(image: Rgb8Image) -> Self {
        Self { size: ReferenceSize::Own, original: image.size(), image: Arc::new(image), text: None, file: None }
    }

    /// The name of its file without the folder.
    pub(crate) fn name(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| Path::new(&file.file.name))
    }
}
