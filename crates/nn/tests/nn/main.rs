//! Layers and transformer blocks.

mod transformer;
mod values;
