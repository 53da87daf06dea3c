//! FLUX.1 and networks that have its blocks.
//!
//! Image and text are tokens. Double blocks have weights of their own for each of the two, single blocks one set for both; all
//! tokens attend to each other. Shifts, scales and gates modulate every layer: FLUX.1 makes them in each block of one embedding.
//!
//! The latents `(b, 16, h, w)` are packed to tokens within the network, so that samplers see none.

pub(crate) mod attention;
pub(crate) mod block;
mod chroma;
mod config;
mod control;
pub(crate) mod denoiser;
pub(crate) mod dims;
pub(crate) mod embedders;
pub(crate) mod inputs;
pub(crate) mod output;
pub(crate) mod packing;
pub(crate) mod positions;
pub(crate) mod streams;
mod transformer;
mod trunk;

pub use chroma::{ChromaConfig, ChromaTransformer};
pub use config::FluxConfig;
pub use control::{FluxControlConfig, FluxControlInput, FluxControlNet};
pub use dims::FluxDims;
pub use transformer::FluxTransformer;

/// The name of FLUX.1's transformer in messages.
const NETWORK: &str = "FLUX transformer";
