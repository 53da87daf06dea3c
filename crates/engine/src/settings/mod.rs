//! From a picture to its settings and back.
//!
//! Kiln writes two texts into a PNG: `parameters`, as AUTOMATIC1111 does ([`crate::parameters`]), and `kiln`, the whole
//! request as JSON ([`own`]). It reads both, AUTOMATIC1111's text wherever that is found: in text chunks, in the Exif of JPEG,
//! WebP and AVIF, and hidden in pixels; and the JSON of some other programs ([`formats`]).
//!
//! Pictures come from strangers. Nothing is allocated because a file says so, texts are bounded, and what is damaged is
//! left out.

mod fit;
mod formats;
mod from_infotext;
mod image;
pub(crate) mod labels;
mod like;
mod origin;
mod own;
mod programs;
#[cfg(test)]
mod round_trip;

pub use image::ImageReport;
pub use like::Like;
pub(crate) use origin::{Files, Origin};
pub(crate) use own::KEY;
pub use own::{ComponentKind, InputFile, NamedFile, OwnSettings, PartFile};
