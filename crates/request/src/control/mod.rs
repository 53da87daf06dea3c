//! Control networks of a request: what it says of them, their images, and their factors at each evaluation.

mod image;
mod kind;
mod passes;
mod scales;
mod spec;

pub use image::Control;
pub use kind::ControlType;
pub use passes::ControlPasses;
pub use scales::{Evaluation, acts, adapter_scales, is_active, is_adapter_active, is_between, scales};
pub use spec::{ControlMode, ControlUse};
