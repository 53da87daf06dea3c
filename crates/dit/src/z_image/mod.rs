//! Z-Image (Cai et al., arXiv 2511.22699): blocks with one set of weights for image and text tokens, which attend to each other,
//! after a few blocks for each of the two.
//!
//! Image and text are filled up to multiples of 32 tokens by learned vectors, which are attended to. The vectors of the timestep
//! scale normalizations and gate results; there are no shifts.

mod block;
mod config;
mod denoiser;
mod embedders;
mod inputs;
mod positions;
mod transformer;

pub use config::ZImageConfig;
pub use transformer::ZImageTransformer;

/// The name of the network in messages.
const NETWORK: &str = "Z-Image transformer";
/// Pixels of the latents along each side of a token.
const PATCH: usize = 2;
/// The number of tokens of image and text are multiples of this number.
const MULTIPLE: usize = 32;
/// The number by which timesteps count.
const TIMESTEPS: f64 = 1000.0;

/// `tokens` filled up to a multiple of [`MULTIPLE`].
fn filled(tokens: usize) -> usize {
    tokens.next_multiple_of(MULTIPLE)
}
