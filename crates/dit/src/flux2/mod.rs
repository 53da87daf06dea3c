//! FLUX.2: double and single blocks as in FLUX.1, with gated feed-forward layers and without biases. One set of modulations serves all
//! blocks of a kind.
//!
//! The latents have 128 channels for each 16 x 16 pixels, so that each of them is a token.

mod block;
mod config;
mod denoiser;
mod inputs;
mod layers;
mod transformer;

pub use config::Flux2Config;
pub use transformer::Flux2Transformer;

/// The name of the network in messages.
const NETWORK: &str = "FLUX.2 transformer";
