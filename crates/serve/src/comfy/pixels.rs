//! The pixels of the images and masks that a graph loads.

use kiln_engine::UpscalerChoice;
use kiln_media::{AlphaRule, DecodeOptions, DecodedImage, Filter, Gray8Image, Image8, Region, Rgb8Image, decode};
use kiln_models::nearest_size;
use kiln_request::comfy::{Channel, GraphImage, ImageFilter, MaskImage, Masking, Named, Pixels, Start, StartMask};

use super::files::{FileName, Kind};
use super::stitch::{stitched, stitched_size};
use crate::app::App;
use crate::error::Refused;

/// Pixels of a latent in ComfyUI.
const CELL: usize = 8;
/// Pixels of `ImageScaleToTotalPixels`.
const MEGAPIXEL: f64 = 1024.0 * 1024.0;
/// Gray values from here on are 1 when a mask is rounded.
const ROUNDED_UP: u8 = 128;

/// Reads the files of a client.
pub(super) struct Reader<'a> {
    pub(super) app: &'a App,
    pub(super) owner: &'a str,
}

/// The image that a run begins with, and its mask.
pub(super) struct Begin {
    pub(super) image: Rgb8Image,
    pub(super) mask: Option<Gray8Image>,
}

impl Reader<'_> {
    fn options(&self) -> DecodeOptions {
        self.app.options.limits.input_images()
    }

    fn file(&self, name: &Named) -> Result<DecodedImage, Refused> {
        let missing = || Refused::invalid(format!("image file {:?} does not exist", name.name)).at("init");
        let file = FileName::parse(&name.name, Kind::Input).ok_or_else(missing)?;
        let (bytes, _) = self.app.comfy.files.read(self.owner, &file).ok_or_else(missing)?;
        decode(&bytes, &name.name, &self.options()).map_err(|error| Refused::unread(error).at("init"))
    }

    /// An image with its changes.
    pub(super) fn graph_image(&self, graph_image: &GraphImage) -> Result<Rgb8Image, Refused> {
        let mut image = self.file(&graph_image.file)?.into_rgb(AlphaRule::Drop);
        for change in &graph_image.changes {
            image = self.changed(image, &change.how)?;
        }
        Ok(image)
    }

    /// The size of an image with its changes.
    pub(super) fn size_of(&self, graph_image: &GraphImage) -> Result<(usize, usize), Refused> {
        let file = self.file(&graph_image.file)?;
        let size = (file.width(), file.height());
        graph_image.changes.iter().try_fold(size, |size, change| self.size_after(size, &change.how))
    }

    /// The size of an image after a change; that of a network follows from its file, see [`network_size`].
    pub(super) fn size_after(&self, size: (usize, usize), how: &Pixels) -> Result<(usize, usize), Refused> {
        match how {
            Pixels::Stitch(how) => stitched_size(size, self.size_of(&how.other)?, how),
            how => Ok(size_after(size, how)),
        }
    }

    /// An image after a change that needs no network.
    pub(super) fn changed(&self, image: Rgb8Image, how: &Pixels) -> Result<Rgb8Image, Refused> {
        let (width, height) = self.size_after(image.size(), how)?;
        let limits = self.app.options.limits;
        if width.saturating_mul(height) > limits.input_pixels || width.max(height) > limits.input_side {
            let most = format!("at most {} pixels, {} a side", limits.input_pixels, limits.input_side);
            return Err(Refused::value("init", format!("an image of {width}x{height}"), most));
        }
        match how {
            Pixels::Size { filter, crop, .. } => {
                let image = if *crop { middle(&image, (width, height))? } else { image };
                image.resize(width, height, filter_of(*filter)).map_err(Refused::unread)
            }
            Pixels::Factor { filter, .. } | Pixels::Total { filter, .. } => {
                image.resize(width, height, filter_of(*filter)).map_err(Refused::unread)
            }
            Pixels::Nearest(_) => {
                middle(&image, (width, height))?.resize(width, height, Filter::Lanczos3).map_err(Refused::unread)
            }
            Pixels::Stitch(how) => stitched(&image, &self.graph_image(&how.other)?, how),
            Pixels::Network(_) => Err(Refused::invalid("a network enlarges results only")),
        }
    }

    /// The image of a control network, in the size of the results (`common_upscale` of comfy/utils.py with `nearest-exact` and
    /// `center`).
    pub(super) fn control(
        &self,
        graph_image: &GraphImage,
        (width, height): (usize, usize),
    ) -> Result<Rgb8Image, Refused> {
        let image = self.graph_image(graph_image)?;
        if image.size() == (width, height) {
            return Ok(image);
        }
        middle(&image, (width, height))?.resize(width, height, Filter::Nearest).map_err(Refused::unread)
    }

    /// A reference image: the middle, in multiples of `multiple`, which the model needs. ComfyUI cuts multiples of [`CELL`] and pads.
    pub(super) fn reference(&self, graph_image: &GraphImage, multiple: usize) -> Result<Rgb8Image, Refused> {
        let image = self.graph_image(graph_image)?;
        let multiple = multiple.max(CELL);
        let size = (image.width() / multiple * multiple, image.height() / multiple * multiple);
        if size.0 == 0 || size.1 == 0 {
            let found = format!("an image of {}x{}", image.width(), image.height());
            return Err(Refused::value("references", found, format!("sides of at least {multiple} pixels")));
        }
        cut(&image, ((image.width() - size.0) / 2, (image.height() - size.1) / 2), size)
    }

    /// The image that a run begins with, for a model whose sizes are multiples of `multiple`.
    pub(super) fn begin(&self, start: &Start, multiple: usize) -> Result<Begin, Refused> {
        let image = self.graph_image(&start.graph_image)?;
        // `vae_encode_crop_pixels`: the middle, in multiples of a latent.
        let size = (image.width() / CELL * CELL, image.height() / CELL * CELL);
        if size.0 == 0 || size.1 == 0 || !size.0.is_multiple_of(multiple) || !size.1.is_multiple_of(multiple) {
            let expected = format!("sides that are multiples of {multiple}, which this model needs");
            return Err(Refused::value("init", format!("an image of {}x{}", image.width(), image.height()), expected));
        }
        let Some(StartMask { mask, how }) = &start.mask else {
            let (left, top) = ((image.width() - size.0) / 2, (image.height() - size.1) / 2);
            let image = cut(&image, (left, top), size)?;
            return Ok(Begin { image, mask: None });
        };
        if size != image.size() {
            let expected = format!("sides that are multiples of {CELL} if it has a mask");
            return Err(Refused::value("init", format!("an image of {}x{}", image.width(), image.height()), expected));
        }
        let mask = self.mask(mask)?;
        if mask.size() != image.size() {
            let expected = format!("{}x{}, the size of its image", image.width(), image.height());
            return Err(Refused::value("mask", format!("a mask of {}x{}", mask.width(), mask.height()), expected));
        }
        match how {
            Masking::Latents | Masking::Model => Ok(Begin { image, mask: Some(mask) }),
            Masking::Erased { grow } => {
                let mask = mask.threshold(ROUNDED_UP - 1);
                Ok(Begin { image: erased(image, &mask), mask: Some(grown(&mask, *grow)?) })
            }
        }
    }

    /// A mask: white is generated again.
    pub(super) fn mask(&self, mask: &MaskImage) -> Result<Gray8Image, Refused> {
        let image = self.file(&mask.file)?;
        let found = match mask.channel {
            // Where an image has no transparency, its mask is empty there, and nothing would be generated.
            Channel::Alpha => image.alpha().map(Gray8Image::invert).ok_or_else(|| {
                Refused::value(
                    "mask",
                    format!("{:?} without transparency", mask.file.name),
                    "an image with a masked part",
                )
            })?,
            Channel::Color(channel) => {
                let rgb = image.rgb();
                let values = rgb.pixels().map(|pixel| pixel.get(channel).copied().unwrap_or_default()).collect();
                Gray8Image::new(rgb.width(), rgb.height(), values).map_err(Refused::unread)?
            }
        };
        Ok(if mask.inverted { found.invert() } else { found })
    }
}

/// The size of an image after a change of this image alone.
fn size_after((width, height): (usize, usize), how: &Pixels) -> (usize, usize) {
    // Python rounds half to even.
    let rounded = |number: f64| number.round_ties_even().max(1.0) as usize;
    match *how {
        Pixels::Size { size: (0, 0), .. } | Pixels::Network(_) | Pixels::Stitch(_) => (width, height),
        Pixels::Size { size: (0, tall), .. } => (rounded(width as f64 * tall as f64 / height as f64), tall),
        Pixels::Size { size: (wide, 0), .. } => (wide, rounded(height as f64 * wide as f64 / width as f64)),
        Pixels::Size { size, .. } => size,
        Pixels::Factor { factor, .. } => (rounded(width as f64 * factor), rounded(height as f64 * factor)),
        Pixels::Total { megapixels, multiple, .. } => {
            let (wide, tall, multiple) = (width as f64, height as f64, multiple.max(1));
            let factor = (megapixels * MEGAPIXEL / (wide * tall)).sqrt();
            let side = |side: f64| (side * factor / multiple as f64).round_ties_even().max(1.0) as usize * multiple;
            (side(wide), side(tall))
        }
        Pixels::Nearest(sizes) => {
            nearest_size(sizes, [width, height]).map_or((width, height), |[width, height]| (width, height))
        }
    }
}

/// The network of an upscaler, and the size that it gives an image.
///
/// # Errors
/// [`Refused`] for a name that the server does not have, and a file that is none.
pub(super) fn network_size(
    app: &App,
    name: &Named,
    (width, height): (usize, usize),
) -> Result<(UpscalerChoice, (usize, usize)), Refused> {
    let stem = kiln_request::comfy::stem(&name.name);
    let choice = UpscalerChoice::File(app.upscaler("upscaler", stem.as_ref())?);
    let open = kiln_engine::OpenUpscaler::open(&choice, None)?;
    let [width, height] = kiln_engine::OpenUpscaler::scaled([width, height], open.scale(None)?);
    Ok((choice, (width, height)))
}

fn filter_of(filter: ImageFilter) -> Filter {
    match filter {
        ImageFilter::Nearest => Filter::Nearest,
        ImageFilter::Lanczos => Filter::Lanczos3,
    }
}

/// The middle of an image in the shape of `size` (`common_upscale` of comfy/utils.py with `center`).
fn middle(image: &Rgb8Image, (width, height): (usize, usize)) -> Result<Rgb8Image, Refused> {
    let (wide, tall) = (image.width() as f64, image.height() as f64);
    let (old, new) = (wide / tall, width as f64 / height as f64);
    let rest = |side: f64, part: f64| ((side - side * part) / 2.0).round_ties_even() as usize;
    let (left, top) = if old > new {
        (rest(wide, new / old), 0)
    } else if old < new {
        (0, rest(tall, old / new))
    } else {
        (0, 0)
    };
    cut(image, (left, top), (image.width() - 2 * left, image.height() - 2 * top))
}

fn cut<const C: usize>(
    image: &Image8<C>,
    (left, top): (usize, usize),
    (width, height): (usize, usize),
) -> Result<Image8<C>, Refused> {
    if (width, height) == image.size() {
        return Ok(image.clone());
    }
    image.crop(Region { left, top, right: left + width, bottom: top + height }).map_err(Refused::unread)
}

/// The image with gray in its masked part, 0.5 there.
fn erased(mut image: Rgb8Image, mask: &Gray8Image) -> Rgb8Image {
    for (pixel, masked) in image.pixels_mut().zip(mask.data()) {
        if *masked > 0 {
            *pixel = [ROUNDED_UP; 3];
        }
    }
    image
}

/// The mask with `by` pixels more: a convolution with ones, `by` wide, whose first value is `ceil((by - 1) / 2)` to the left.
fn grown(mask: &Gray8Image, by: usize) -> Result<Gray8Image, Refused> {
    if by == 0 {
        return Ok(mask.clone());
    }
    let (width, height) = mask.size();
    let before = (by - 1).div_ceil(2);
    // A value is set if one of those from `i - before` to `i - before + by - 1` is.
    let spread = |from: &[bool], to: &mut [bool]| {
        for (i, value) in to.iter_mut().enumerate() {
            let end = (i + by).saturating_sub(before).min(from.len());
            *value = from.get(i.saturating_sub(before)..end).is_some_and(|part| part.contains(&true));
        }
    };
    let mut rows = vec![false; width * height];
    for (y, row) in rows.chunks_exact_mut(width).enumerate() {
        let from: Vec<bool> = mask.row(y).iter().map(|value| *value > 0).collect();
        spread(&from, row);
    }
    let mut all = vec![0u8; width * height];
    let mut column = vec![false; height];
    for x in 0..width {
        let from: Vec<bool> = rows.iter().skip(x).step_by(width).copied().collect();
        spread(&from, &mut column);
        for (value, is_set) in all.iter_mut().skip(x).step_by(width).zip(&column) {
            *value = if *is_set { u8::MAX } else { 0 };
        }
    }
    Gray8Image::new(width, height, all).map_err(Refused::unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `conv2d` of a single 1 at (5, 5) in 12x12 with ones of 6x6 and a padding of 3, cut to 12x12, is set from 3 to 8: PyTorch
    /// sums the values from `i - 3` to `i + 2`.
    #[test]
    fn a_mask_grows_as_in_pytorch() {
        let mut values = vec![0; 144];
        values[5 * 12 + 5] = 255;
        let mask = Gray8Image::new(12, 12, values).unwrap();
        let set = |mask: &Gray8Image, y: usize| -> Vec<usize> {
            mask.row(y).iter().enumerate().filter(|(_, value)| **value > 0).map(|(x, _)| x).collect()
        };
        let six = grown(&mask, 6).unwrap();
        assert_eq!(set(&six, 5), [3, 4, 5, 6, 7, 8]);
        assert_eq!((set(&six, 2).len(), set(&six, 3).len(), set(&six, 8).len(), set(&six, 9).len()), (0, 6, 6, 0));
        assert_eq!(set(&grown(&mask, 1).unwrap(), 5), [5]);
        assert_eq!(grown(&mask, 0).unwrap(), mask);
    }

    #[test]
    fn the_middle_is_cut_as_there() {
        let image = Rgb8Image::filled(100, 50, [1, 2, 3]).unwrap();
        assert_eq!(middle(&image, (64, 64)).unwrap().size(), (50, 50));
        assert_eq!(middle(&image, (200, 100)).unwrap().size(), (100, 50));
        assert_eq!(middle(&image, (100, 25)).unwrap().size(), (100, 26)); // round(12.5) is 12
        let size = |size| size_after((100, 50), &Pixels::Size { filter: ImageFilter::Lanczos, size, crop: false });
        let total = |(width, height), multiple| {
            size_after((width, height), &Pixels::Total { filter: ImageFilter::Lanczos, megapixels: 1.0, multiple })
        };
        // round(1000 * sqrt(1048576 / 1500000)) and so on.
        assert_eq!(
            [total((1500, 1000), 1), total((1500, 1000), 64), total((1024, 1024), 1)],
            [(1254, 836), (1280, 832), (1024, 1024)]
        );
        let kontext = |size| size_after(size, &Pixels::Nearest(&kiln_models::KONTEXT_SIZES));
        assert_eq!(
            [kontext((300, 300)), kontext((30, 100)), kontext((1200, 1000))],
            [(1024, 1024), (672, 1568), (1104, 944)]
        );
        assert_eq!([size((0, 0)), size((0, 25)), size((33, 0)), size((7, 9))], [(100, 50), (50, 25), (33, 16), (7, 9)]);
    }
}
