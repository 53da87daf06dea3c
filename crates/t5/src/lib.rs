//! T5 text encoders (Raffel et al., arXiv 1910.10683, version 1.1) and their Unigram tokenizers.
//!
//! A [`Tokenizer`] cuts a text into ids and frames them to a length: an end token, then padding. A [`T5Encoder`] computes the
//! hidden states of all tokens. Ids equal those of transformers, and hidden states agree within rounding, also in f16.
//!
//! This crate opens no weight files: an encoder declares its parameters, and the caller loads them.
//!
//! ```
//! use candle_core::{DType, Device};
//! use kiln_t5::{T5Config, T5Encoder};
//! use kiln_weights::{Placement, RandomSource, load};
//!
//! let config = r#"{"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 10,
//!     "feed_forward_proj": "gated-gelu"}"#;
//! let encoder = T5Encoder::new(T5Config::from_json(config)?)?;
//! let weights = RandomSource::new(encoder.segments(), 1);
//! load(encoder.segments(), &weights, &Placement::new(Device::Cpu, DType::F32))?;
//!
//! let output = encoder.encode(&[vec![5, 7, 1, 0, 0]], &Device::Cpu)?;
//! assert_eq!(output[0].dims(), [1, 5, 8]); // (1, tokens, d_model)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod block;
mod config;
mod encoder;
mod error;
mod position;
mod tokenizer;

pub use config::T5Config;
pub use encoder::{T5Encoder, T5Ids};
pub use error::{Error, Result};
pub use tokenizer::{TOKENIZER_FILES, Tokenizer};
