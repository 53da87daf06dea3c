//! Language models as text encoders: Qwen3 (Yang et al., arXiv 2505.09388) and the text part of Qwen2.5-VL (Bai et al., arXiv
//! 2502.13923), and their tokenizers.
//!
//! A [`Tokenizer`] puts a prompt into a chat template and cuts it into ids. A [`QwenEncoder`] computes the hidden states of the
//! layers that a family takes; layers behind the last of them are not part of it. With the vision tower of Qwen2.5-VL, texts
//! contain images ([`ImagePatches`]). Ids equal those of transformers, and hidden
//! states agree within rounding.
//!
//! This crate opens no weight files: an encoder declares its parameters, and the caller loads them.
//!
//! ```
//! use candle_core::{DType, Device};
//! use kiln_qwen::{QwenConfig, QwenEncoder, Text};
//! use kiln_weights::{Placement, RandomSource, load};
//!
//! let config = r#"{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
//!     "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}"#;
//! let encoder = QwenEncoder::new(QwenConfig::from_json(config)?, &[1, 2])?;
//! let weights = RandomSource::new(encoder.segments(), 1);
//! load(encoder.segments(), &weights, &Placement::new(Device::Cpu, DType::F32))?;
//!
//! let output = encoder.encode(&[Text::whole(vec![5, 7, 1])], &Device::Cpu)?;
//! assert_eq!(output[0].dims(), [1, 3, 16]); // (1, tokens, 2 hidden_size)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod encoder;
mod error;
mod feed_forward;
mod layer;
mod text;
mod tokenizer;
mod vision;

pub use config::QwenConfig;
pub use encoder::QwenEncoder;
pub use error::{Error, Result};
pub use text::{Text, TextImage};
pub use tokenizer::{ChatTemplate, Generation, Ids, TOKENIZER_FILE, Tokenizer};
pub use vision::{ImagePatches, VisionConfig, seen_size};
