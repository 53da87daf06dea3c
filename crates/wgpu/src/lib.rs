//! Tensors and operators on GPUs of any vendor, by wgpu: Vulkan, Metal and DirectX 12.
//!
//! [`Gpu`] is a [`Backend`]: networks run on it with [`kiln_ops::portable::PortableTensor`]. A kernel is a file of WGSL in
//! `kernels`, whose constants and types are written before it, so that each combination is a shader of its own; `operators`
//! chooses the kernel of an operator and its numbers. Tensors are f32 or f16, and sums are f32.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use kiln_ops::ActivationOp;
//! use kiln_ops::{Activation, portable::PortableTensor};
//! use kiln_wgpu::{Gpu, adapters};
//!
//! let Some(adapter) = adapters().into_iter().next() else { return Ok(()) };
//! let gpu = Gpu::open(&adapter)?.backend();
//! let x = PortableTensor::upload(&gpu, &Tensor::ones((2, 3), DType::F32, &Device::Cpu)?)?;
//! let y = x.apply(&ActivationOp { x: &x, function: Activation::Silu })?.download()?;
//! assert_eq!(y.dims(), [2, 3]);
//! # Ok::<(), kiln_ops::Error>(())
//! ```
//!
//! [`Backend`]: kiln_ops::portable::Backend

#![deny(unsafe_code)] // allowed where shaders are compiled and kept, and where drivers are asked for memory

mod adapter;
mod buffers;
mod check;
mod compiler;
mod dispatch;
mod gpu;
mod kernel_store;
mod memory;
mod operators;
mod pipelines;
mod queue;
mod spirv;
#[cfg(test)]
mod translations;
mod unroll;
mod view;
mod workgroup_matrices;

pub use adapter::{Adapter, Api, Matrices, adapters};
pub use gpu::Gpu;
pub use kernel_store::KernelStore;
