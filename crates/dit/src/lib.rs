//! Denoisers that are diffusion transformers, one module for each kind of network.
//!
//! A network is built from its `config.json` alone. Latents at input and output are `(b, c, h, w)`; tokens are `(b, s, d)`.
//!
//! This crate does not depend on files, text, schedules or guidance.
#![forbid(unsafe_code)]

mod block_cache;
mod error;
mod flux;
mod flux2;
mod qwen_image;
mod residual_trend;
mod rotary;
pub mod sd3;
mod tokens;
pub mod z_image;

pub use error::{Error, Result};
pub use flux::{
    ChromaConfig, ChromaTransformer, FluxConfig, FluxControlConfig, FluxControlInput, FluxControlNet, FluxDims,
    FluxTransformer,
};
pub use flux2::{Flux2Config, Flux2Transformer};
pub use qwen_image::{QwenImageConfig, QwenImageTransformer};
