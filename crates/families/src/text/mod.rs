//! The text stages of families whose models have a T5 text encoder.

mod conditions;
mod stage;
mod t5;
#[cfg(test)]
mod tests;

pub use stage::ClipT5Text;
pub use t5::T5Part;
