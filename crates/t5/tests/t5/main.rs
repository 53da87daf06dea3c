//! The encoder and its tokenizer.

mod encoder;
mod tokenizer;
