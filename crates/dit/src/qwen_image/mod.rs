//! Qwen-Image (Wu et al., arXiv 2508.02324).
//!
//! Double blocks of image and text tokens, which attend to each other. Rows and columns of the image are counted from its center,
//! and the text follows on the diagonal. Masked text tokens are the last keys of the attention.

mod config;
mod denoiser;
mod layers;
mod positions;
mod transformer;

pub use config::QwenImageConfig;
pub use transformer::QwenImageTransformer;

/// The name of the network in messages.
const NETWORK: &str = "Qwen-Image transformer";
