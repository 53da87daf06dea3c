//! From the files that a request names to what a job begins with.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_media::{AlphaRule, Borders, Filter, Gray8Image, ResizeMode, Rgb8Image, ValueRange, extend, fill_masked};

use super::cache::Source;
use super::control::FittedInput;
use super::masks;
use super::paste::PasteBack;
use super::read::{ImageBytes, ImageFile, file_name, pixels_md5};
use super::{InpaintArea, MaskContent, Rule};
use crate::error::{Error, Result};
use crate::init::{Init, InitImage, InitLatents};
use crate::options::{ImageOptions, OPTIONS, OptionGroup, OptionSet, Request};
use crate::settings::{InputFile, NamedFile};

/// The blur of AUTOMATIC1111's masks where a request has none.
const AUTOMATIC_BLUR: f64 = 4.0;

/// The input images that a job keeps besides its initial latents.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The files, with their hashes.
    pub files: Vec<InputFile>,
    /// The request's fields that are no values of [`ImageOptions`], with files named without their folders.
    pub(super) request: Request,
    /// The image that is pasted around the results.
    pub paste_back: Option<Arc<PasteBack>>,
    /// Pixels of the image that is pasted around the results, 0 without one.
    pub pasted: usize,
    /// The files of the images.
    pub(super) source: Source,
    /// Whether the pixels were dropped.
    pub(super) lacks_pixels: bool,
}

/// The input images of a request, with the size of its results.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub init: Init,
    pub(crate) fitted: FittedInput,
    pub input: Input,
    pub width: usize,
    pub height: usize,
}

impl Input {
    /// Writes the fields of the input into the request that makes an image again. As in AUTOMATIC1111's text, some are there
    /// where they have their defaults, too.
    pub fn write(&self, options: &ImageOptions, request: &mut Request) {
        options.write(request);
        for name in ["init", "mask", "mask_invert", "extend"] {
            if let Some(row) = OPTIONS.iter().find(|row| row.name == name) {
                row.copy(&self.request, request);
            }
        }
        request.strength = Some(options.strength);
        if self.request.mask.is_none() && self.request.extend.is_none() {
            return;
        }
        request.mask_blur = Some(options.blur()).filter(|&blur| blur > 0.0).or(options.mask_blur);
        if options.inpaint_area == InpaintArea::Masked {
            request.inpaint_padding = Some(options.inpaint_padding);
        }
        if options.soft_inpainting {
            request.soft_schedule_bias = Some(options.soft_schedule_bias);
            request.soft_preservation = Some(options.soft_preservation);
            request.soft_contrast_boost = Some(options.soft_contrast_boost);
            request.soft_mask_influence = Some(options.soft_mask_influence);
            request.soft_difference_threshold = Some(options.soft_difference_threshold);
            request.soft_difference_contrast = Some(options.soft_difference_contrast);
        }
    }
}

impl Request {
    /// Reads the input images; `None` if the request has none. Sizes are multiples of `multiple`.
    ///
    /// # Errors
    /// Errors of the files, and [`Error::Value`] for options that do not go together.
    pub fn prepare_input(&self, multiple: usize) -> Result<Option<Prepared>> {
        let set = |only_masks: bool| {
            let of_masks =
                ["mask_invert", "mask_blur", "mask_content", "inpaint_area", "inpaint_padding", "paste_back"];
            OPTIONS.iter().find(move |row| {
                row.group == OptionGroup::Input
                    && !row.value(self).is_default()
                    && (!only_masks || of_masks.contains(&row.name) || row.name.starts_with("soft_"))
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
        let options = self.image_options();
        self.check_soft(&options)?;
        options.check(self.mask.is_some() || self.extend.is_some())?;
        let bytes = ImageBytes::read("init", path)?;
        let (width, height) = self.size_of(bytes.header()?, multiple)?.results; // refused before anything is decoded
        let file = bytes.decode()?;
        drop(bytes);
        let mask_file = self.mask.as_ref().map(|path| ImageFile::read("mask", path)).transpose()?;
        let hash = pixels_md5(&file.image);
        let files = [("init", Some(path), Some(&file)), ("mask", self.mask.as_ref(), mask_file.as_ref())];
        let named = |(option, path, file): (&str, Option<&PathBuf>, Option<&ImageFile>)| {
            let file =
                NamedFile { name: file_name(path?).to_string_lossy().into_owned(), sha256: Some(file?.sha256.clone()) };
            let pixels_md5 = (option == "init").then(|| hash.clone());
            Some(InputFile { option: option.into(), file, pixels_md5 })
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
        let request = Request {
            init: self.init.as_deref().map(file_name),
            mask: self.mask.as_deref().map(file_name),
            mask_invert: self.mask_invert,
            extend: self.extend,
            ..Request::default()
        };
        let (init, fitted, paste_back) = begin(image, mask, &options, (width, height))?;
        let paste_back = paste_back.filter(|_| options.paste_back).map(Arc::new);
        let pasted = paste_back.as_ref().map_or(0, |paste_back| paste_back.pixels());
        let source = Source::of(self, multiple);
        let input = Input { files, request, paste_back, pasted, source, lacks_pixels: false };
        Ok(Some(Prepared { init, fitted, input, width, height }))
    }

    /// The options of input images, with the defaults that follow from other options.
    pub(crate) fn image_options(&self) -> ImageOptions {
        let options = ImageOptions::of(self);
        let rule = if options.soft_inpainting { Rule::Automatic1111 } else { options.rule };
        ImageOptions { rule: self.rule.unwrap_or(rule), ..options }
    }

    /// Refuses soft inpainting by another rule, and its options without it.
    fn check_soft(&self, options: &ImageOptions) -> Result<()> {
        let refuse = |name, found, expected: &str| Err(Error::Value { name, found, expected: expected.into() });
        if options.soft_inpainting && options.rule != Rule::Automatic1111 {
            return refuse("rule", options.rule.id().into(), "a1111 with `soft_inpainting`");
        }
        let given = OPTIONS.iter().find(|row| is_soft(row.name) && !row.value(self).is_default());
        match given {
            Some(row) if !options.soft_inpainting => refuse(row.name, row.value(self).shown(), "`soft_inpainting` too"),
            _ => Ok(()),
        }
    }

    /// The mask, inverted and blurred, in the size of `image`. AUTOMATIC1111 resizes it when it uses it (`init` of
    /// `StableDiffusionProcessingImg2Img`, `modules/processing.py`); a part of the image needs its size here.
    fn read_mask(&self, file: &ImageFile, image: &Rgb8Image, options: &ImageOptions) -> Result<Gray8Image> {
        let is_automatic = options.rule == Rule::Automatic1111;
        let mut mask = file.image.to_mask();
        if is_automatic && file.image.is_transparent() && !options.soft_inpainting {
            mask = mask.threshold(128);
        }
        let is_resized_later = is_automatic && options.inpaint_area == InpaintArea::Whole && self.extend.is_none();
        if mask.size() != image.size() && !is_resized_later {
            mask = mask.resize(image.width(), image.height(), Filter::Lanczos3)?;
        }
        if self.mask_invert {
            mask = mask.invert();
        }
        match options.blur() as f32 {
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
        if self.rule == Rule::Comfy && is_masked && self.inpaint_area == InpaintArea::Masked {
            return refuse("inpaint_area", "masked", "whole with `rule` comfy, which has no such option");
        }
        Ok(())
    }

    /// The blur of the mask.
    fn blur(&self) -> f64 {
        let usual = if self.rule == Rule::Automatic1111 { AUTOMATIC_BLUR } else { 0.0 };
        self.mask_blur.unwrap_or(usual)
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

/// The initial latents of a job, and the image that is pasted around its results.
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
        return Ok((init, FittedInput { image: Arc::new(image), mask: None, region: None }, None));
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
    let fitted = FittedInput { image: Arc::new(image.clone()), mask: Some(Arc::new(mask.clone())), region };
    // As AUTOMATIC1111 does, noise and nothing in the latents begin with colors from around the mask, too.
    let image = if options.mask_content == MaskContent::Original { image } else { fill_masked(&image, &mask)? };
    let mask = masks::of_rule(&mask, options)?;
    let image = pixels(&image, options.latents())?;
    Ok((Init::Masked { image, mask, strength }, fitted, Some(paste_back)))
}

/// Whether an option is one of soft inpainting besides its switch.
fn is_soft(name: &str) -> bool {
    name.starts_with("soft_") && name != "soft_inpainting"
}

/// The pixels as the encoder takes them.
fn pixels(image: &Rgb8Image, latents: InitLatents) -> Result<InitImage> {
    let planes = image.to_planes(ValueRange::MinusOneToOne);
    let pixels = Tensor::from_vec(planes, (1, 3, image.height(), image.width()), &Device::Cpu)?;
    InitImage::new(&pixels, latents)
}
