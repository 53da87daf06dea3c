//! The text encoders of a model behind one interface, [`TextStage`]: from the texts of prompts to named tensors.
//!
//! The pipeline plans, caches and shares texts, and brings weights into memory. A stage knows its tokenizers, its networks and
//! how texts of unequal length become equally long. All lengths are in context tokens: rows of the denoiser's text.
//!
//! 1. [`TextStage::tokenize`] cuts a [`PromptText`] into [`Tokens`], before any weights are read.
//! 2. [`TextStage::fit`] says how long the rows of a batch are, for plans and for [`TextStage::dry_run`].
//! 3. [`TextStage::encode`] computes the [`TextTensors`] of each text on the caller's [`Runs`].
//! 4. [`TextStage::fill`] makes them as long as their rows.

mod config;
mod device;
mod error;
mod image;
mod stage;
mod tensors;
mod tokens;
mod words;

pub use config::EncoderConfig;
pub use device::TextDevice;
pub use error::{Error, Result};
pub use image::PromptImage;
pub use stage::{Fill, Runs, TextNetwork, TextStage};
pub use tensors::{CONTEXT, LENGTH, POOLED, TextTensors};
pub use tokens::{PromptText, Tokens};
pub use words::{NoWords, Word, Words};
