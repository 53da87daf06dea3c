//! Floor 4: from a prompt's text to the tensors that condition the denoiser: the tokenizer and CLIP's text encoders.
//!
//! [`prompt`] reads AUTOMATIC1111's dialect: what of a prompt is text, at which steps, and how much each word weighs.
//! A [`Tokenizer`] cuts a text of any length into chunks of 75 tokens, each framed to the 77 that the encoders were
//! trained with. A [`TextEncoder`] gives the hidden states of every chunk and its pooled vector. Both follow what
//! transformers does, to the id and within rounding.
//!
//! This crate never knows which model it serves: that SDXL has two encoders and takes their penultimate layers is said
//! by who calls it. It opens no weight files: an encoder declares its parameters, and is filled from outside.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kiln_clip::{HiddenLayer, TextEncoder, TextEncoderConfig};
//! use kiln_weights::{MapSource, Placement, Segment, load};
//!
//! let config = r#"{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
//!     "vocab_size": 10, "hidden_act": "quick_gelu", "eos_token_id": 9}"#;
//! let encoder = TextEncoder::new(TextEncoderConfig::from_json(config)?)?;
//! let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
//! let params = encoder.segments().iter().flat_map(Segment::params);
//! let weights = params.map(|p| Ok((p.key.clone(), zeros(&p.shape)?))).collect::<candle_core::Result<MapSource>>()?;
//! load(encoder.segments(), &weights, &Placement::new(Device::Cpu, DType::F32))?;
//!
//! let output = encoder.encode(&[vec![8, 1, 2, 9, 9]], HiddenLayer::PENULTIMATE, &Device::Cpu)?;
//! assert_eq!(output.hidden.dims(), [1, 5, 8]); // (chunks, tokens, hidden_size)
//! assert_eq!(output.pooled.dims(), [1, 8]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod emphasis;
mod encoder;
mod error;
mod layer;
pub mod prompt;
mod tokenizer;
mod weighted;
mod words;

pub use config::TextEncoderConfig;
pub use emphasis::Emphasis;
pub use encoder::{HiddenLayer, TextEncoder, TextOutput};
pub use error::{Error, Result};
pub use tokenizer::{ClipPadding, TOKENIZER_FILES, Tokenizer};
pub use words::{Words, mentions};
