//! Control images: fitted to the size of the results, and to the part of the input that the network sees.

use std::path::Path;
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Gray8Image, Image8, Region, ResizeMode, Rgb8Image};

use super::ResizeChoice;
use super::read::{ImageFile, file_name};
use crate::error::Result;
use crate::settings::{InputFile, NamedFile};

/// The input image of a request as its network sees it.
#[derive(Debug, Clone)]
pub(crate) struct FittedInput {
    /// In the size of the results.
    pub(crate) image: Arc<Rgb8Image>,
    /// The mask in the same size: white is what is generated.
    pub(crate) mask: Option<Arc<Gray8Image>>,
    /// The part of the input that it is, with the input's width and height; `None` is all of it.
    pub(super) region: Option<(Region, (usize, usize))>,
}

/// A control image in the size of the results.
pub(crate) struct FittedControl {
    pub(crate) image: Rgb8Image,
    /// The luminance of the image, made before it was fitted.
    pub(crate) gray: Gray8Image,
    /// Its transparent part.
    pub(crate) hole: Option<Gray8Image>,
    pub(crate) file: InputFile,
}

/// Reads control image number `i` and fits it to `size`, width and height. If the network sees a part of the input, it sees
/// the same part of the control image (`padding_mask_crop` of diffusers), which has the input's size or gets it.
///
/// # Errors
/// Errors of the file.
pub(crate) fn fit_control(
    path: &Path,
    i: usize,
    resize: ResizeChoice,
    size: (usize, usize),
    input: Option<&FittedInput>,
) -> Result<FittedControl> {
    let file = ImageFile::read("controls", path)?;
    let named = NamedFile { name: file_name(path).to_string_lossy().into_owned(), sha256: Some(file.sha256) };
    let named = InputFile { option: format!("controls[{i}].image"), file: named, pixels_md5: None };
    let hole = file.image.alpha().filter(|_| file.image.is_transparent()).map(Gray8Image::invert);
    let whole = file.image.into_rgb(AlphaRule::Drop);
    Ok(FittedControl {
        gray: fitted(&whole.to_gray(), resize, size, input)?,
        image: fitted(&whole, resize, size, input)?,
        hole: hole.map(|hole| fitted(&hole, resize, size, input)).transpose()?,
        file: named,
    })
}

/// An image in `size`, or the part of it that the network sees of the input.
pub(crate) fn fitted<const C: usize>(
    image: &Image8<C>,
    resize: ResizeChoice,
    (width, height): (usize, usize),
    input: Option<&FittedInput>,
) -> Result<Image8<C>> {
    Ok(match input.and_then(|input| input.region) {
        None => image.resize_to(resize.mode(), width, height, Filter::Lanczos3)?,
        Some((region, (whole_width, whole_height))) => {
            let image = image.resize_to(resize.mode(), whole_width, whole_height, Filter::Lanczos3)?;
            image.crop(region)?.resize_to(ResizeMode::Fill, width, height, Filter::Lanczos3)?
        }
    })
}

impl ResizeChoice {
    /// The mode of resizing images.
    pub(super) fn mode(self) -> ResizeMode {
        match self {
            Self::Stretch => ResizeMode::Stretch,
            Self::Crop => ResizeMode::Crop,
            Self::Fill => ResizeMode::Fill,
        }
    }
}
