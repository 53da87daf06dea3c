//! From a prompt's text, or from an image that is a prompt, to the tensors that condition the
//! U-Net. It has the tokenizer, CLIP's text encoders, and CLIP's image encoders ([`VisionEncoder`]).
//!
//! `kiln-prompt` parses a prompt; [`chunks`] and a [`Tokenizer`] cut its texts, of any length, into chunks of 75 tokens,
//! each framed to the 77 that the encoders were trained with. A [`TextEncoder`] computes the hidden states of every chunk and its pooled vector. Ids equal those of
//! transformers, and hidden states agree within rounding.
//!
//! [`ClipText`] is the text stage of a model with one such encoder or several.
//!
//! This crate does not depend on the model: the caller decides, for example, that SDXL uses two encoders and their
//! penultimate layers. It opens no weight files: an encoder declares its parameters, and the caller loads them.
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

mod chunk;
mod config;
mod encoder;
mod error;
mod layer;
mod stage;
mod textual_inversion;
mod tokenizer;
mod vision;
mod weighted;

pub use chunk::{Chunk, chunks};
pub use config::TextEncoderConfig;
pub use encoder::{HiddenLayer, TextEncoder, TextOutput};
pub use error::{Error, Result};
pub use stage::{ClipEncoder, ClipText};
pub use textual_inversion::TokenEmbeddings;
pub use tokenizer::{ClipPadding, TOKENIZER_FILES, Tokenizer};
pub use vision::{ImageFeatures, VisionConfig, VisionEncoder};
pub use weighted::{RunPortion, WeightedText};
