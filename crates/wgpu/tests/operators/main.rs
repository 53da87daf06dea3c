//! Each operator on a GPU, or on Mesa's lavapipe, compared with the CPU: in f32, and in f16 if the GPU has it.
//!
//! These tests need a driver, and are ignored without `--ignored`.

mod harness;
mod layers;
mod maps;
mod matrices;
mod memory;
mod parts;
mod rows;
mod stored;
mod subgroups;
