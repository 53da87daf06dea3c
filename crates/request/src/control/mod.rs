//! Control networks of a request: what it says of them, their images, and their factors at each evaluation.

mod image;
mod scales;
mod spec;

pub use image::Control;
pub use scales::{is_active, scales};
pub use spec::{ControlMode, ControlUse};
