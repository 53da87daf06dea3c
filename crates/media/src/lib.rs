//! Floor 1: images without a network: reading, resizing, and the text that programs write into their files.
//!
//! Images come from strangers. No memory is allocated because a file claims a size, texts are bounded, and damaged parts are
//! left out. This crate knows no request and no model: [`Infotext`] and [`ForeignSettings`] are names and values.
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

mod canvas;
mod comfy_graph;
mod exif;
mod foreign;
mod infotext;
mod json;
mod png_encode;
mod png_text;
mod stealth;
mod text;

pub use canvas::{Canvas, LETTER, LINE, Thumbnail, size_of};
pub use comfy_graph::{Graph, Node, NodeAt};
pub use foreign::{ForeignSettings, MAX_JSON, is_of_fooocus, is_of_novelai, object_of};
pub use infotext::{Infotext, quoted};
pub use json::{short, shortened};
pub use png_encode::{EncodingError, encode_png};
pub use text::{ImageText, ImageTexts};
