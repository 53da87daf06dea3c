//! Input images of a request: read, checked and prepared when the request is resolved, before any weights are read.
//!
//! Sources of the formulas: diffusers 0.42 (`VaeImageProcessor`, the image-to-image and inpainting pipelines) and
//! AUTOMATIC1111 v1.10 (`StableDiffusionProcessingImg2Img.init` of `modules/processing.py`).

mod cache;
mod choices;
mod control;
mod extend;
mod masks;
mod paste;
mod prepare;
mod read;
mod size;

pub use cache::InputCache;
pub use choices::{InpaintArea, MaskContent, ResizeChoice, Rule, SwitchBy};
pub(crate) use choices::{choice, named};
pub(crate) use control::{FittedControl, FittedInput, fit_control, fitted};
pub use extend::Extend;
pub use paste::PasteBack;
pub use prepare::Input;
pub(crate) use prepare::Prepared;
pub use read::ImageSource;
pub(crate) use read::{read_prompt_image, read_reference, read_region_mask};
pub use size::InputSize;

#[cfg(test)]
mod tests;
