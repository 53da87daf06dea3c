//! Control networks of a job: what a request says of them, their images, their files and their factors.

mod image;
mod loaded;
mod scales;
mod spec;

pub use image::Control;
pub(crate) use loaded::LoadedControls;
pub use loaded::control_configs;
pub(crate) use scales::{is_active, scales};
pub use spec::{ControlMode, ControlUse};
