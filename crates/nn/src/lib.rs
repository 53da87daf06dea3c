//! Neural network layers, which are operators with their parameters.
//!
//! All networks are made of these layers only, so this is the one place where a layer can be quantized, streamed or
//! patched by a LoRA. A layer is built from numbers alone. Building declares its parameters
//! ([`kiln_weights::ParamBuilder`]), whose names are those of diffusers and transformers.
//!
//! `forward` of a layer or a network is written once, for every [`TensorLike`]: with tensors it computes, with
//! [`MetaTensor`]s it returns shapes and counts bytes and floating-point operations.
//!
//! This crate does not depend on files or whole networks.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kiln_nn::Linear;
//! use kiln_weights::{MapSource, Placement, Segments, load};
//!
//! let mut segments = Segments::default();
//! let proj = segments.add("proj", |p| Linear::new(&p.pp("proj"), 2, 1, false));
//! let weight = Tensor::new(&[[1f32, 10.]], &Device::Cpu)?;
//! let source = MapSource::from_iter([("proj.weight".to_string(), weight)]);
//! load(&segments, &source, &Placement::new(Device::Cpu, DType::F32))?;
//! let y = proj.enter()?.forward(&Tensor::new(&[[3f32, 4.]], &Device::Cpu)?)?;
//! assert_eq!(y.to_vec2::<f32>()?, [[43.]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod attention;
mod conv2d;
mod embedding;
mod error;
mod feed_forward;
mod gated_feed_forward;
pub mod limits;
mod linear;
mod meta;
mod modulation;
mod norm;
mod qkv_linear;
mod resample;
mod resnet;
mod resnet_strips;
mod rope;
pub mod strips;
mod tensor;

pub use attention::{Attention, AttentionConfig, AttentionKeys};
pub use conv2d::Conv2d;
pub use embedding::Embedding;
pub use error::{At, Error, Result};
pub use feed_forward::FeedForward;
pub use gated_feed_forward::{GatedFeedForward, Mlp};
pub use kiln_ops as ops;
pub use kiln_ops::{Operand, Reduction};
pub use linear::Linear;
pub use meta::{FlopCount, MetaDevice, MetaMoments, MetaTensor, MetaWeight};
pub use modulation::{Modulation, modulate};
pub use norm::{GroupNorm, LayerNorm, MapNorm, PixelNorm, RmsNorm};
pub use qkv_linear::QkvLinear;
pub use resample::{Downsample, Upsample};
pub use resnet::{ResnetBlock, ResnetConfig, ResnetIn, ResnetOut};
pub use rope::{Rope, RopeTables};
pub use tensor::{Elementwise, Moments, Operators, TensorLike};
