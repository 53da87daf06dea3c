//! Settings in images: writing and reading them.
//!
//! Kiln writes two texts into a PNG: `parameters` in AUTOMATIC1111's format ([`crate::parameters`]), and `kiln`, the
//! whole request as JSON ([`OwnSettings`]). It reads both; AUTOMATIC1111's text is read in text chunks, in the Exif data of
//! JPEG, WebP and AVIF, and hidden in pixels. It also reads the JSON of some other programs ([`formats`]).
//!
//! Image files are untrusted. No memory is allocated because a file claims a size, the length of texts is limited, and
//! damaged parts are skipped.

mod fit;
pub mod formats;
pub mod from_infotext;
mod image;
pub mod labels;
mod own;
pub mod programs;
#[cfg(test)]
mod round_trip;

pub use image::ImageReport;
pub use own::{InputFile, KEY, NamedFile, OwnSettings, PartFile, PartKind, is_hash};
