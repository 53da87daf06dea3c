//! The autoencoders, between latents and pixels.
//!
//! [`Decoder`] and [`Encoder`] are the two halves of diffusers' `AutoencoderKL`. Each is a separate network with its
//! own segments: text-to-image loads only the decoder. The latents of `AutoencoderKLFlux2` are patches.
//! Of `AutoencoderKLQwenImage`, an autoencoder of videos, they are those of a single frame. [`TinyDecoder`] and [`TinyEncoder`] are those of diffusers'
//! `AutoencoderTiny`: TAESD, which is much smaller and keeps less detail. Latents and images are `(b, c, h, w)`, images
//! from -1 to 1; inside, everything is channels-last.
//!
//! This crate does not depend on files, noise or image formats.
//!
//! ```
//! use candle_core::DType;
//! use kiln_vae::{Decoder, VaeConfig};
//!
//! let config = VaeConfig::from_json(r#"{
//!     "block_out_channels": [32, 64], "norm_num_groups": 16, "scaling_factor": 0.18215,
//!     "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"]
//! }"#)?;
//! assert_eq!(config.downscale(), 2);
//! println!("{} bytes", Decoder::new(&config).segments().bytes(DType::F32));
//! # Ok::<(), kiln_vae::Error>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod decoder;
mod encoder;
mod error;
mod frame_attention;
mod frames;
mod gaussian;
mod layers;
mod mid_block;
mod patches;
mod tiling;
mod tiny;
mod tiny_config;

pub use config::VaeConfig;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::{Error, Result};
pub use gaussian::DiagonalGaussian;
pub use kiln_nn::ops::Target;
pub use tiling::Tiling;
pub use tiny::{TinyDecoder, TinyEncoder};
pub use tiny_config::TinyConfig;
