//! The U-Net with adapters and control networks, and with streamed weights.

mod adapters;
mod control;
mod streaming;
