//! T5 text encoders (Raffel et al., arXiv 1910.10683, version 1.1) and their Unigram tokenizers.
#![forbid(unsafe_code)]

mod error;

pub use error::{Error, Result};
