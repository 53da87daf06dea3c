//! The interface between networks and the pipeline that runs them.
//!
//! A [`Denoiser`] is the network that a sampler calls. A call of a network takes [`Inputs`]: named tensors and constants. Whoever makes an input and the network that reads it agree
//! on a [`Slot`]. All code between them (batches, recorded steps, plans, a second device) treats inputs alike by the rules in
//! their slots, so that a new input needs no change there.
//!
//! A [`Control`] is a network that guides a denoiser by an image, and runs in the same call.
//!
//! [`text`] has the interface of text encoders.
//!
//! This crate does not depend on any network.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kiln_network::{Inputs, Slot, slots::CONTEXT};
//! use kiln_nn::TensorLike;
//!
//! const MASK: Slot = Slot::each("mask");
//! let ones = |b: usize, s: usize| Tensor::ones((b, s), DType::F32, &Device::Cpu);
//! let one = Inputs::new().with(CONTEXT, ones(1, 77)?).with(MASK, ones(1, 77)?);
//! let two = Inputs::new().with(CONTEXT, ones(2, 77)?).with(MASK, ones(2, 77)?);
//! let joined = Inputs::combine(&[&one, &two], |rows| TensorLike::cat(rows, 0).map_err(kiln_network::Error::from))?;
//! assert_eq!((joined.batch(), one.group_key(1) == two.group_key(2)), (3, true));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod control;
mod denoiser;
mod error;
mod extra_channels;
mod inputs;
mod key;
mod on_backend;
mod plain;
mod slot;
pub mod slots;
pub mod text;

pub use config::{DenoiserConfig, TextWidths};
pub use control::{
    Control, ControlConfig, ControlImage, ControlModes, ControlRole, ControlRows, ControlSpec, ControlTakes,
    ControlTypes, Embed,
};
pub use denoiser::{Capabilities, Denoiser, Forward, LatentSpec, StepShape};
pub use error::{Error, Failure, Result};
pub use extra_channels::ExtraChannels;
pub use inputs::Inputs;
pub use key::InputKey;
pub use on_backend::OnBackend;
pub use slot::{Access, Rows, Slot};
