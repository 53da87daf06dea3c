//! Preprocessors of control images that need no network, as the ControlNet extension for AUTOMATIC1111's web UI has them
//! (`scripts/preprocessor/model_free_preprocessors.py` and `legacy`), which computes with OpenCV and NumPy.

mod canny;
mod lines;
mod opencv_blur;
mod opencv_resize;

pub use canny::canny;

use crate::{Error, Gray8Image, Result, Rgb8Image};
use opencv_resize::OpenCvFilter;

/// A preprocessor of images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preprocessor {
    /// Edges, [`canny`]: pixels above `high`, and those above `low` that touch them.
    Canny {
        /// The lower threshold, of `|gx| + |gy|`.
        low: f64,
        /// The upper threshold.
        high: f64,
    },
    /// Light lines on black.
    Lineart,
    /// White strokes on black.
    Scribble {
        /// How different a stroke is from its surroundings, 0 to 255.
        threshold: f64,
    },
    /// A Gaussian blur.
    Blur {
        /// The standard deviation in pixels, above 0.
        sigma: f64,
    },
    /// A smaller image, whose pixels are means. ControlNets for tiles resize it to the size of the result.
    Tile {
        /// How much smaller, at least 1. Below 1.1 the image stays as it is.
        factor: f64,
    },
    /// White where all channels are above a level, else black.
    Threshold {
        /// The level.
        level: u8,
    },
    /// `255 - v`: white lines on black for a drawing on paper.
    Invert,
    /// One color for each 64 by 64 pixels.
    ColorGrid,
}

/// The side of a cell of [`Preprocessor::ColorGrid`].
const CELL: usize = 64;

/// The largest sigma of [`Preprocessor::Blur`].
const MAX_SIGMA: f64 = 1024.0;

impl Preprocessor {
    /// The names that users type, with one line about each. Those of the extension are names too ([`Self::find`]).
    pub const NAMES: [(&str, &str); 8] = [
        ("canny", "edges between two thresholds"),
        ("lineart", "light lines on black"),
        ("scribble", "white strokes on black"),
        ("blur", "a Gaussian blur"),
        ("tile", "a smaller image of means"),
        ("threshold", "white where all channels are above a level"),
        ("invert", "the negative"),
        ("color", "one color for each 64 by 64 pixels"),
    ];

    /// The preprocessor of a name with the extension's defaults; `None` for another name.
    pub fn find(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "canny" => Self::Canny { low: 100.0, high: 200.0 },
            "lineart" | "lineart_standard" => Self::Lineart,
            "scribble" | "scribble_xdog" => Self::Scribble { threshold: 32.0 },
            "blur" | "blur_gaussian" => Self::Blur { sigma: 9.0 },
            "tile" | "tile_resample" => Self::Tile { factor: 1.0 },
            "threshold" => Self::Threshold { level: 127 },
            "invert" => Self::Invert,
            "color" | "color_grid" | "color_t2i" => Self::ColorGrid,
            _ => return None,
        })
    }

    /// The map of an image. With a `resolution` the image is resized before, so that its shorter side has that many pixels;
    /// [`Self::Tile`] and [`Self::Invert`] take images as they are. Maps of one channel are gray.
    ///
    /// # Errors
    /// [`Error::Size`] for a result without pixels or with too many, and for a value out of range.
    pub fn run(self, image: &Rgb8Image, resolution: Option<usize>) -> Result<Rgb8Image> {
        let resized = || match resolution {
            Some(side) => resized(image, side),
            None => Ok(image.clone()),
        };
        Ok(match self {
            Self::Canny { low, high } => padded(&resized()?, |image| canny(image, low, high))?.to_rgb(),
            Self::Lineart => padded(&resized()?, lines::lineart_standard)?.to_rgb(),
            Self::Scribble { threshold } => {
                padded(&resized()?, |image| lines::scribble_xdog(image, threshold))?.to_rgb()
            }
            Self::Blur { sigma } if sigma > 0.0 && sigma <= MAX_SIGMA => resized()?.opencv_blur(sigma)?,
            Self::Blur { sigma } => {
                return Err(Error::Size(format!(
                    "the sigma of a blur is {sigma}; it is above 0 and at most {MAX_SIGMA}"
                )));
            }
            Self::Tile { factor } => tile(image, factor)?,
            Self::Threshold { level } => {
                resized()?.map(|pixel| [if pixel.iter().all(|&v| v > level) { 255 } else { 0 }; 3])
            }
            Self::Invert => image.map(|pixel| pixel.map(|v| 255 - v)),
            Self::ColorGrid => color_grid(image, resolution)?,
        })
    }
}

/// The image that a ControlNet for inpainting gets, `(3, h, w)`: `v / 255`, and -1 where `mask` is above one half (diffusers'
/// `make_inpaint_condition`; `inpaint_global_harmonious` of the extension).
///
/// # Errors
/// [`Error::Size`] if image and mask differ in size.
pub fn inpaint_condition(image: &Rgb8Image, mask: &Gray8Image) -> Result<Vec<f32>> {
    image.check_same_size(mask, "the mask")?;
    let mut planes = image.to_planes(crate::ValueRange::ZeroToOne);
    for plane in planes.chunks_exact_mut(image.width() * image.height()) {
        for (value, &[mask]) in plane.iter_mut().zip(mask.pixels()) {
            if mask > 127 {
                *value = -1.0;
            }
        }
    }
    Ok(planes)
}

/// `resize_image_with_pad` without the padding: the shorter side gets `side` pixels.
fn resized(image: &Rgb8Image, side: usize) -> Result<Rgb8Image> {
    let (width, height) = image.size();
    let factor = side as f64 / width.min(height) as f64;
    let filter = if factor > 1.0 { OpenCvFilter::Cubic } else { OpenCvFilter::Area };
    let scaled = |side: usize| (side as f64 * factor).round_ties_even() as usize;
    image.opencv_resize(scaled(width), scaled(height), filter)
}

/// The map of the image with its right and lower edge repeated up to a multiple of 64, without these pixels.
fn padded(image: &Rgb8Image, map: impl FnOnce(&Rgb8Image) -> Result<Gray8Image>) -> Result<Gray8Image> {
    let (width, height) = image.size();
    let more = |side: usize| side.next_multiple_of(CELL) - side;
    let borders = crate::Borders { right: more(width), bottom: more(height), ..crate::Borders::default() };
    let (whole, _) = crate::extend(image, borders)?;
    map(&whole)?.crop(crate::Region { left: 0, top: 0, right: width, bottom: height })
}

/// `tile_resample`.
fn tile(image: &Rgb8Image, factor: f64) -> Result<Rgb8Image> {
    if factor.is_nan() || factor < 1.0 {
        return Err(Error::Size(format!("the factor of a tile is {factor}; it is at least 1")));
    }
    if factor < 1.1 {
        return Ok(image.clone());
    }
    let smaller = |side: usize| (side as f64 / factor) as usize;
    image.opencv_resize(smaller(image.width()), smaller(image.height()), OpenCvFilter::Area)
}

/// `apply_color` of `annotator/color`: the shorter side resized by areas, then one pixel for each cell, cubic, then its neighbors.
fn color_grid(image: &Rgb8Image, resolution: Option<usize>) -> Result<Rgb8Image> {
    let (width, height) = image.size();
    let side = resolution.unwrap_or(width.min(height));
    let scaled = |of: usize, by: usize| (of as f64 / by as f64 * side as f64).round_ties_even() as usize;
    let (w, h) = if height < width { (scaled(width, height), side) } else { (side, scaled(height, width)) };
    if w < CELL || h < CELL {
        return Err(Error::Size(format!("a color grid of {w}x{h} pixels has no cell; both sides are at least {CELL}")));
    }
    let image = image.opencv_resize(w, h, OpenCvFilter::Area)?;
    image.opencv_resize(w / CELL, h / CELL, OpenCvFilter::Cubic)?.opencv_resize(w, h, OpenCvFilter::Nearest)
}
