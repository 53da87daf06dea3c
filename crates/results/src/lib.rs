//! Results of a run: images with their settings, the files that they become, and the way back from a file to the request, model and
//! files that made it.
#![forbid(unsafe_code)]

pub mod embedding_names;
pub mod generated_image;
pub mod latents_file;
pub mod like;
pub mod origin;
pub mod output;
mod stored_inputs;

pub use embedding_names::embedding_names;
pub use generated_image::{DecodedImage, GeneratedImage};
pub use latents_file::LatentsFile;
pub use like::Like;
pub use origin::Origin;
pub use output::Output;
