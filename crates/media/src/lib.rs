//! Floor 1: images without a network: reading, resizing, and the text that programs write into their files.
//!
//! Pixels are plain buffers of bytes ([`Image8`]). The crate knows no tensor library: [`Rgb8Image::to_planes`] and
//! [`Gray8Image::to_unit`] give the values that a tensor takes.
//!
//! Where a rule exists elsewhere, the results are those of Pillow 13 (resizing, grey values, blur, compositing), of
//! OpenCV 5 (the blur of masks) and of AUTOMATIC1111's `modules/images.py` and `modules/masking.py` (resize modes, crop
//! regions, fill). `tests/fixtures` has what those programs computed, and the scripts.
//!
//! ```
//! use kiln_media::{AlphaRule, DecodeOptions, Filter, ResizeMode, Rgb8Image, StillFormat, ValueRange, decode, encode};
//!
//! let file = encode(&Rgb8Image::filled(6, 4, [255, 0, 0])?, StillFormat::Png)?;
//! let image = decode(&file, "a red image", &DecodeOptions::default())?.into_rgb(AlphaRule::Drop);
//! let image = image.resize_to(ResizeMode::Crop, 8, 8, Filter::Lanczos3)?;
//! let values = image.to_planes(ValueRange::MinusOneToOne); // (3, h, w)
//! assert_eq!((values[0], values[64]), (1.0, -1.0));
//! # Ok::<(), kiln_media::Error>(())
//! ```
#![forbid(unsafe_code)]

mod blur;
mod composite;
mod decode;
mod decoded;
mod encode;
mod error;
mod extend;
mod fill;
mod gray;
mod image8;
mod jpeg;
mod open;
mod region;
mod resize;
mod resize_mode;
mod rgb;

pub use decode::{DecodeOptions, FileFormat, decode};
pub use decoded::{AlphaRule, DecodedImage};
pub use encode::{StillFormat, encode};
pub use error::{Error, Result};
pub use extend::{Borders, extend};
pub use fill::fill_masked;
pub use image8::{Gray8Image, Image8, MAX_PIXELS, Rgb8Image, Rgba8Image};
pub use open::{open, read_all};
pub use region::Region;
pub use resize::Filter;
pub use resize_mode::{Placement, ResizeMode};
pub use rgb::{ValueRange, size_in_multiples};
