//! From the files that a request names to what a job begins with.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_media::{
    AlphaRule, Borders, Filter, Gray8Image, ResizeMode, Rgb8Image, ValueRange, extend, fill_masked, size_in_multiples,
};

use super::control::FittedInput;
use super::paste::PasteBack;
use super::read::{ImageFile, file_name};
use super::{InpaintArea, MaskContent, Rule};
use crate::error::{Error, Result};
use crate::init::{Init, InitImage, InitLatents, Mask};
use crate::options::{ImageOptions, OPTIONS, OptionGroup, OptionSet, Request};
use crate::settings::{InputFile, NamedFile};

/// The blur of AUTOMATIC1111's masks where a request has none.
const AUTOMATIC_BLUR: f64 = 4.0;

/// What a job keeps of its input images, besides what it begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The files, with their hashes.
    pub files: Vec<InputFile>,
    /// The request's fields that are no values of [`ImageOptions`], with files named without their folders.
    request: Request,
    /// What is pasted around the results.
    pub paste_back: Option<Arc<PasteBack>>,
}

/// The input images of a request, with the size of its results.
pub struct Prepared {
    pub init: Init,
    pub(crate) fitted: FittedInput,
    pub input: Input,
    pub width: usize,
    pub height: usize,
}

impl Input {
    /// Writes the fields of the input into the request that makes an image again.
    pub fn write(&self, strength: f64, request: &mut Request) {
        for name in ["init", "mask", "mask_invert", "extend"] {
            if let Some(row) = OPTIONS.iter().find(|row| row.name == name) {
                row.copy(&self.request, request);
            }
        }
        // Images that begin with images always have it, as in AUTOMATIC1111's text.
        request.strength = Some(strength);
    }
}

impl Request {
    /// Reads the input images; `None` where the request has none. Sizes are multiples of `multiple`.
    ///
    /// # Errors
    /// Those of the files, and [`Error::Value`] for options that do not go together.
    pub fn prepare_input(&self, multiple: usize) -> Result<Option<Prepared>> {
        let set = |only_masks: bool| {
            let of_masks =
                ["mask_invert", "mask_blur", "mask_content", "inpaint_area", "inpaint_padding", "paste_back"];
            OPTIONS.iter().find(move |row| {
                row.group == OptionGroup::Input
                    && !row.value(self).is_default()
                    && (!only_masks || of_masks.contains(&row.name))
            })
        };
        let needs = |only_masks: bool, expected: &str| match set(only_masks) {
            None => Ok(()),
            Some(row) => {
                Err(Error::Value { name: row.name, found: row.value(self).shown(), expected: expected.into() })
            }
        };
        let Some(path) = &self.init else {
            needs(false, "`init` too, the image to begin with")?;
            return Ok(None);
        };
        if self.mask.is_none() && self.extend.is_none() {
            needs(true, "`mask` or `extend` too")?;
        }
        let options = ImageOptions::of(self);
        options.check(self.mask.is_some() || self.extend.is_some())?;
        let file = ImageFile::read("init", path)?;
        let mask_file = self.mask.as_ref().map(|path| ImageFile::read("mask", path)).transpose()?;
        let files = [("init", Some(path), Some(&file)), ("mask", self.mask.as_ref(), mask_file.as_ref())];
        let named = |(option, path, file): (&str, Option<&PathBuf>, Option<&ImageFile>)| {
            let file =
                NamedFile { name: file_name(path?).to_string_lossy().into_owned(), sha256: Some(file?.sha256.clone()) };
            Some(InputFile { option: option.into(), file })
        };
        let files = files.into_iter().filter_map(named).collect();

        let alpha = if options.rule == Rule::Automatic1111 { AlphaRule::FlattenOnWhite } else { AlphaRule::Drop };
        let mut image = file.image.into_rgb(alpha);
        let mut mask = mask_file.map(|mask| self.read_mask(&mask, &image, &options)).transpose()?;
        if let Some(sides) = self.extend {
            let borders = Borders { top: sides.top, left: sides.left, bottom: sides.bottom, right: sides.right };
            let (extended, border) = extend(&image, borders)?;
            image = extended;
            mask = Some(with_border(mask, border, borders)?);
        }
        let (width, height) = size_in_multiples(image.width(), image.height(), multiple);
        let (width, height) = (self.width.unwrap_or(width), self.height.unwrap_or(height));
        let (width, height) =
            (crate::limits::side("width", width, multiple)?, crate::limits::side("height", height, multiple)?);
        let request = Request {
            init: self.init.as_deref().map(file_name),
            mask: self.mask.as_deref().map(file_name),
            mask_invert: self.mask_invert,
            extend: self.extend,
            ..Request::default()
        };
        let (init, fitted, paste_back) = begin(image, mask, &options, (width, height))?;
        let paste_back = paste_back.filter(|_| options.paste_back).map(Arc::new);
        Ok(Some(Prepared { init, fitted, input: Input { files, request, paste_back }, width, height }))
    }

    /// The mask in the size of `image`, inverted and blurred.
    fn read_mask(&self, file: &ImageFile, image: &Rgb8Image, options: &ImageOptions) -> Result<Gray8Image> {
        let is_automatic = options.rule == Rule::Automatic1111;
        let mut mask = file.image.to_mask();
        if is_automatic && file.image.is_transparent() {
            mask = mask.threshold(128);
        }
        if mask.size() != image.size() {
            mask = mask.resize(image.width(), image.height(), Filter::Lanczos3)?;
        }
        if self.mask_invert {
            mask = mask.invert();
        }
        let usual = if is_automatic { AUTOMATIC_BLUR } else { 0.0 };
        match options.mask_blur.unwrap_or(usual) as f32 {
            0.0 => Ok(mask),
            blur if is_automatic => Ok(mask.opencv_gaussian_blur(blur, blur)?),
            blur => Ok(mask.pillow_gaussian_blur(blur, blur)?),
        }
    }
}

impl ImageOptions {
    /// Refuses what is not possible together.
    fn check(&self, is_masked: bool) -> Result<()> {
        let refuse = |name, found: &str, expected: &str| {
            Err(Error::Value { name, found: found.into(), expected: expected.into() })
        };
        if self.strength <= 0.0 {
            return refuse("strength", &format!("{:?}", self.strength), "more than 0 and at most 1");
        }
        if self.rule != Rule::Diffusers && self.init_noise == Some(InitLatents::Sample) {
            // Both programs sample with a generator that no seed sets.
            return refuse("init_noise", "sample", "mean with this `rule`: its sample depends on no seed");
        }
        if self.rule == Rule::Comfy && is_masked {
            return refuse("rule", "comfy", "diffusers or a1111 with a mask");
        }
        Ok(())
    }

    /// Which latents the input has.
    fn latents(&self) -> InitLatents {
        let usual = if self.rule == Rule::Diffusers { InitLatents::Sample } else { InitLatents::Mean };
        self.init_noise.unwrap_or(usual)
    }
}

/// The mask of an extended image: the border, and what `mask` has of the image itself.
fn with_border(mask: Option<Gray8Image>, border: Gray8Image, borders: Borders) -> Result<Gray8Image> {
    let mut all = border;
    if let Some(mask) = mask {
        all.paste(&mask, borders.left as i64, borders.top as i64);
    }
    Ok(all)
}

/// What a job begins with, and what is pasted around its results.
fn begin(
    image: Rgb8Image,
    mask: Option<Gray8Image>,
    options: &ImageOptions,
    (width, height): (usize, usize),
) -> Result<(Init, FittedInput, Option<PasteBack>)> {
    let mode = options.resize_mode.mode();
    let strength = options.strength;
    let Some(mask) = mask else {
        let image = image.resize_to(mode, width, height, Filter::Lanczos3)?;
        let init = Init::Image { image: pixels(&image, options.latents())?, strength };
        return Ok((init, FittedInput { image: Arc::new(image), region: None }, None));
    };
    let is_automatic = options.rule == Rule::Automatic1111;
    let (image, mask, paste_back) = match options.inpaint_area {
        InpaintArea::Whole => {
            let image = image.resize_to(mode, width, height, Filter::Lanczos3)?;
            let mask = mask.resize_to(mode, width, height, Filter::Lanczos3)?;
            let overlay = if is_automatic { mask.doubled() } else { mask.clone() };
            (image.clone(), mask, PasteBack { original: image, mask: overlay, region: None })
        }
        InpaintArea::Masked => {
            let Some(bounds) = mask.bounding_box() else {
                let expected = "at least one pixel that is not black: the part to regenerate".into();
                return Err(Error::Value { name: "mask", found: "black".into(), expected });
            };
            let region = bounds.padded(options.inpaint_padding, image.width(), image.height());
            let region = region.expanded((width, height), image.size());
            let fitted = image.crop(region)?.resize_to(ResizeMode::Fill, width, height, Filter::Lanczos3)?;
            let seen = mask.crop(region)?.resize_to(ResizeMode::Fill, width, height, Filter::Lanczos3)?;
            (fitted, seen, PasteBack { original: image, mask, region: Some(region) })
        }
    };
    let region = paste_back.region.map(|region| (region, paste_back.original.size()));
    let fitted = FittedInput { image: Arc::new(image.clone()), region };
    // As AUTOMATIC1111 does, noise and nothing in the latents begin with colors from around the mask, too.
    let image = if options.mask_content == MaskContent::Original { image } else { fill_masked(&image, &mask)? };
    let mask = if is_automatic { latent_mask(&mask)? } else { mask.threshold(127) };
    let values = Tensor::from_vec(mask.to_unit(), (1, 1, height, width), &Device::Cpu)?;
    let image = pixels(&image, options.latents())?;
    Ok((Init::Masked { image, mask: Mask::new(&values)?, strength }, fitted, Some(paste_back)))
}

/// AUTOMATIC1111's mask of the latents (`processing.py`: Pillow's bicubic resizing to the latents' size, then rounding half to
/// even), with a latent's value in all of its 8 by 8 pixels.
fn latent_mask(mask: &Gray8Image) -> Result<Gray8Image> {
    const CELL: usize = 8;
    let (width, height) = mask.size();
    let small = mask.resize(width / CELL, height / CELL, Filter::Bicubic)?.threshold(127);
    Ok(small.resize(width, height, Filter::Nearest)?)
}

/// The pixels as the encoder takes them.
fn pixels(image: &Rgb8Image, latents: InitLatents) -> Result<InitImage> {
    let planes = image.to_planes(ValueRange::MinusOneToOne);
    let pixels = Tensor::from_vec(planes, (1, 3, image.height(), image.width()), &Device::Cpu)?;
    InitImage::new(&pixels, latents)
}
