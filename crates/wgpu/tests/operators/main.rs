//! Each operator on a GPU, or on Mesa's lavapipe, compared with the CPU: in f32, and in f16 if the GPU has it.
//!
//! Without a Vulkan driver these tests are ignored: `KILN_TEST_WGPU=1` requires one.

mod harness;
mod layers;
mod maps;
mod rows;
