//! CUDA's libraries, loaded at run time: a program with GPU code starts on machines without them.
//!
//! cudarc, as candle asks for it, calls functions of linked libraries. This crate defines functions of these names: each
//! jumps to an address that [`load`] takes from the library that it finds. So a program depends on no library of
//! NVIDIA, links without them, and takes them from wherever they are (`places.rs`).
//!
//! | Library | |
//! | --- | --- |
//! | the driver, cuBLAS, cuBLASLt | loaded when the driver is initialized; without them there is no GPU |
//! | cuDNN | loaded when the first convolution is planned; without it convolutions are slower, except on Hopper |
//! | cuRAND, NVRTC, CUDA's runtime | never loaded: candle refers to them, and Kiln uses nothing of theirs (`unused.rs`) |
#![allow(unsafe_code)]

mod error;
mod forward;
mod functions;
mod hint;
mod library;
mod load;
mod places;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod unused;

pub use error::Error;
pub use library::Library;
pub use load::{Loaded, cudnn, load};
