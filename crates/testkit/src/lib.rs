//! For tests only: the fixtures of `tests/fixtures` and comparisons with them, and a server
//! that behaves like the Hugging Face Hub.
//!
//! Errors are in standard deviations of the expected values: a bound then means the same for latents of order 1 and for
//! activations of order 100. Every comparison prints its result; `cargo xtask parity` collects the same figures into
//! `docs/parity.md`.
//!
//! This crate is a test tool: it panics if a fixture is missing or a comparison fails.
#![forbid(unsafe_code)]

// In a build with CUDA, candle names functions of CUDA's libraries, which this crate's test programs link from there; the
// allocator's two are the memory pool's in programs.
use kiln_cuda_loader as _;
use kiln_mempool as _;

mod adapter;
mod compare;
mod control;
mod fixture;
mod hashed;
mod hub_server;
mod image_prompt;
mod inception;
mod paths;
mod similarity;
mod target;
mod xet_store;

pub use adapter::{TinyAdapter, TinyLllite, TinyUnion};
pub use compare::{Deviation, Parity, deviation};
pub use control::{TinyControl, control_pixels, write_tensors};
pub use fixture::Fixture;
pub use hashed::{hashed, hashed_weights};
pub use hub_server::{Asked, Fault, HubServer, git_blob, sha256};
pub use image_prompt::{PromptForm, TinyIpAdapter, TinyVision};
pub use inception::{inception_tensors, write_inception};
pub use paths::{fixtures, repository, shared_data, shared_models};
pub use similarity::{Limits, Similarity, similarity};
pub use target::Target;
