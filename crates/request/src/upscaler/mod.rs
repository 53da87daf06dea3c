//! Upscalers before their weights are read: which one, where its file is, and the sizes that it makes.

mod choice;
mod open;

pub use choice::UpscalerChoice;
pub(crate) use choice::filter_name;
pub use open::OpenUpscaler;
