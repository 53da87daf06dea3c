//! Control images: fitted to the size of the results, and to the part of the input that the network sees.

use std::path::Path;
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Region, ResizeMode, Rgb8Image};

use super::ResizeChoice;
use super::read::{ImageFile, file_name};
use crate::error::Result;
use crate::settings::{InputFile, NamedFile};

/// The input image of a request as its network sees it.
#[derive(Debug, Clone)]
pub(crate) struct FittedInput {
    /// In the size of the results.
    pub(crate) image: Arc<Rgb8Image>,
    /// The part of the input that it is, with the input's width and height; `None` is all of it.
    pub(super) region: Option<(Region, (usize, usize))>,
}

/// Reads control image number `i` and fits it to `size`, width and height. Where the network sees a part of the input, it
/// sees the same part of the control image (`padding_mask_crop` of diffusers), which has the input's size or gets it.
///
/// # Errors
/// Those of the file.
pub(crate) fn fit_control(
    path: &Path,
    i: usize,
    resize: ResizeChoice,
    (width, height): (usize, usize),
    input: Option<&FittedInput>,
) -> Result<(Rgb8Image, InputFile)> {
    let file = ImageFile::read("controls", path)?;
    let named = NamedFile { name: file_name(path).to_string_lossy().into_owned(), sha256: Some(file.sha256) };
    let named = InputFile { option: format!("controls[{i}].image"), file: named, pixels_md5: None };
    let image = file.image.into_rgb(AlphaRule::Drop);
    let fitted = match input.and_then(|input| input.region) {
        None => image.resize_to(resize.mode(), width, height, Filter::Lanczos3)?,
        Some((region, (whole_width, whole_height))) => {
            let image = image.resize_to(resize.mode(), whole_width, whole_height, Filter::Lanczos3)?;
            image.crop(region)?.resize_to(ResizeMode::Fill, width, height, Filter::Lanczos3)?
        }
    };
    Ok((fitted, named))
}

impl ResizeChoice {
    /// As images are resized.
    pub(super) fn mode(self) -> ResizeMode {
        match self {
            Self::Stretch => ResizeMode::Stretch,
            Self::Crop => ResizeMode::Crop,
            Self::Fill => ResizeMode::Fill,
        }
    }
}
