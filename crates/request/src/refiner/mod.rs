//! The second model of a run, which takes the last steps over: SDXL's refiner, or any other model with the same latents.

mod model;
mod span;

pub use model::Refiner;
pub use span::DenoiserSpan;
