//! The text stages of families whose models have a text encoder of T5 or Qwen3.

mod conditions;
mod masked_t5;
mod qwen;
#[cfg(test)]
mod qwen_tests;
mod stage;
mod t5;
#[cfg(test)]
mod tests;

pub use masked_t5::MaskedT5Text;
pub use qwen::{QwenPart, QwenText};
pub use stage::ClipT5Text;
pub use t5::T5Part;
