//! The transformer of Stable Diffusion 3 and 3.5 (MMDiT; Esser et al., arXiv 2403.03206; diffusers' `SD3Transformer2DModel`) and
//! its ControlNet.
//!
//! Tokens of the image and of the text run through joint blocks: each kind has its own layers, and both attend to all tokens.
//! Images are `(b, n, d)`, a token for each square of `patch_size` latents, row by row; texts are `(b, s, d)`.

mod attention;
mod block;
mod config;
mod control;
mod denoiser;
mod embedder;
mod inputs;
mod positions;
mod raw_config;
mod transformer;

pub use config::Sd3Config;
pub use control::{Sd3ControlConfig, Sd3ControlInput, Sd3ControlNet};
pub use transformer::Sd3Transformer;

/// The name of the network in messages.
const NETWORK: &str = "SD3 transformer";
/// The epsilon of all normalizations.
const EPS: f64 = 1e-6;
