//! Prompts, tokenizers, and inputs that do not fit.

mod bad_input;
mod prompts;
mod tokenizer_files;
