//! The transformers, with random weights and compared with diffusers. Separate programs are the tests that count the memory of the process.

mod block_cache;
mod chroma;
#[path = "../common/mod.rs"]
mod common;
mod flux;
mod flux2;
mod flux2_parity;
mod flux_control;
mod flux_parity;
mod qwen_image;
mod sd3;
mod sd3_control;
mod sd3_parity;
mod z_image;
mod z_image_parity;
