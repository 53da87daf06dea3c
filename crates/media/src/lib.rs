//! Images without a network: reading, resizing, and the text that programs write into image files.
//!
//! Pixels are plain byte buffers ([`Image8`]). The crate contains no tensor library, request or model:
//! [`Rgb8Image::to_planes`] and [`Gray8Image::to_unit`] return the values for a tensor, [`Infotext`] and
//! [`ForeignSettings`] are names and values. Image files are untrusted: no memory is allocated because a file claims a
//! size, the length of texts is limited, and damaged parts are skipped.
//!
//! Where a rule exists elsewhere, the results are those of Pillow 13 (resizing, gray values, blur, compositing), of
//! OpenCV 5 (the blur of masks) and of AUTOMATIC1111's `modules/images.py` and `modules/masking.py` (resize modes, crop
//! regions, fill). `tests/fixtures` has the results of those programs, and the scripts.
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
//!
//! ```
//! use kiln_media::{ImageTexts, Infotext, encode_png};
//!
//! let settings = "a red apple\nSteps: 20, Sampler: Euler a, Seed: 42";
//! let png = encode_png((1, 1), &[255, 0, 0], &[("parameters", settings)]).unwrap();
//! let texts = ImageTexts::read_from(&mut std::io::Cursor::new(png), |_| true)?.unwrap().texts;
//! assert_eq!(Infotext::parse(&texts[0].text).unwrap().get("Seed"), Some("42"));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod blur;
mod canvas;
mod clip_pixels;
mod comfy_graph;
mod composite;
mod decode;
mod decoded;
mod encode;
mod error;
mod exif;
mod extend;
mod fill;
mod foreign;
mod gray;
mod image8;
mod infotext;
mod jpeg;
mod json;
mod open;
mod png_deflate;
mod png_encode;
mod png_filter;
mod png_level;
mod png_text;
mod preprocess;
mod region;
mod resize;
mod resize_mode;
mod resize_weights;
mod rgb;
mod stealth;
mod text;

pub use canvas::{Canvas, LETTER, LINE, Thumbnail, size_of};
pub use clip_pixels::{clip_pixels, clip_pixels_of_size};
pub use comfy_graph::{Graph, Node, NodeAt};
pub use decode::{DECODER_BASE, DECODER_PIXEL, DecodeOptions, FileFormat, ImageHeader, decode, header};
pub use decoded::{AlphaRule, DecodedImage};
pub use encode::{StillFormat, encode, encode_with_settings};
pub use error::{Error, Result};
pub use extend::{Borders, extend};
pub use fill::fill_masked;
pub use foreign::{ForeignSettings, MAX_JSON, is_of_fooocus, is_of_novelai, object_of};
pub use image8::{Gray8Image, Image8, MAX_PIXELS, Rgb8Image, Rgba8Image};
pub use infotext::{Infotext, quoted};
pub use json::{short, shortened};
pub use open::{open, read_all, read_file};
pub use png_encode::{EncodingError, encode_png, encode_png_at, is_png_key, write_png};
pub use png_level::PngLevel;
pub use preprocess::{Preprocessor, canny, inpaint_condition};
pub use region::Region;
pub use resize::Filter;
pub use resize_mode::{Placement, ResizeMode};
pub use rgb::{ValueRange, size_in_multiples};
pub use text::{ImageText, ImageTexts};
