//! The operators of the networks, as functions on tensors.
//!
//! Activations are channels-last: a feature map is `(b, h, w, c)` and *is* the token matrix `(b, h*w, c)` without a
//! copy. Every operator is one folder: `mod.rs` is its contract (shapes, dtypes, errors, formula) and the public
//! function, `reference.rs` the same in candle's primitives (the oracle of the tests, and the fallback for devices
//! without a kernel), `cpu.rs` the CPU kernel, `kernel.cu` and `cuda.rs` the CUDA kernel and its launch (`build.rs`
//! compiles and embeds it; `src/cuda` holds what launches share). `src/backend` picks the kernel of a tensor's device.
//!
//! Sums (norm statistics, softmax, matrix products) are f32 whatever the storage dtype. Every operator takes `out:
//! Option<&Tensor>`: given a tensor, it writes the result there and allocates nothing for it.
//!
//! This crate knows no networks, no parameter names and no files.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kiln_ops::{GroupNorm, group_norm};
//!
//! let x = Tensor::randn(0f32, 1., (2, 8, 8, 32), &Device::Cpu)?; // (b, h, w, c)
//! let gamma = Tensor::ones(32, DType::F32, &Device::Cpu)?;
//! let beta = Tensor::zeros(32, DType::F32, &Device::Cpu)?;
//! let config = GroupNorm { num_groups: 8, eps: 1e-5, silu: true };
//! let y = group_norm(&x, &gamma, &beta, config, None)?;
//! assert_eq!(y.dims(), x.dims());
//! # Ok::<(), kiln_ops::Error>(())
//! ```
#![deny(unsafe_code)] // allowed where kernels are, and in device/cuda.rs

#[macro_use]
mod cpu;

mod activated_linear;
mod activation;
mod attention;
mod backend;
mod change_sums;
mod concat;
mod conv2d;
mod conversion;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
mod elementwise;
mod error;
mod flop;
mod gated_activation;
mod gated_residual;
mod geglu;
pub mod graph;
mod group_norm;
mod guidance;
mod image_bytes;
mod int8;
mod layer_norm;
pub mod layout;
mod linear;
mod linear_geglu;
pub mod marker;
mod matrix;
mod modulated_norm;
mod not_finite;
mod observer;
mod operation;
mod out_of_memory;
mod output;
mod packing;
pub mod peer;
mod pixel_shuffle;
pub mod portable;
mod primitives;
pub mod read_back;
mod rope;
mod stop;
pub mod stream;
#[cfg(test)]
mod test_support;
mod timestep_embedding;
pub mod trace;
mod upsample_nearest;
mod w8a8;
mod workspace;

pub use activated_linear::{ActivatedLinearOp, activated_linear};
pub use activation::{Activation, ActivationOp, activation};
pub use attention::{
    Attention, AttentionOp, AttentionReceivedOp, GroupedAttention, GroupedAttentionOp, MaskedAttentionOp, attention,
    attention_masked, attention_workspace, grouped_attention, supports_strided_qkv,
};
pub use change_sums::{CHANGE_PART, ChangeSumsOp, change_sums};
pub use concat::{ConcatOp, concat_channels};
pub use conv2d::{
    Conv2d, Conv2dEpilogue, Conv2dInputs, Conv2dOp, FusedConv2d, FusedConv2dOp, STRIP_ROWS, Slope, Strip, conv2d,
    conv2d_strip, conv2d_workspace, fused_conv2d, fused_conv2d_workspace,
};
pub use conversion::{f16_to_bf16, f16_to_f32, f32_to_bf16};
pub use cpu::f32_values;
pub use cpu::product::peak::peak_flops;
pub use device::uninit;
pub use elementwise::{Arithmetic, affine, arithmetic, cast, contiguous, copy, index_select, weighted_sum};
pub use error::{Error, Result};
pub use flop::{attention_flop, conv2d_flop, linear_flop};
pub use gated_activation::{GatedActivationOp, gated_activation};
pub use gated_residual::{GatedResidualOp, gated_residual};
pub use geglu::{GegluOp, geglu};
pub use group_norm::{
    GroupNorm, GroupNormApplyOp, GroupNormMoments, GroupNormOp, GroupNormStatistics, group_norm, group_norm_apply,
    group_norm_workspace, sums_workspace,
};
pub use guidance::{GuidanceOp, guidance};
pub use image_bytes::{ByteRounding, image_bytes};
pub use int8::{Int8Input, Int8Matrix, int8_workspace};
pub use layer_norm::{LayerNormOp, layer_norm};
pub use layout::LayoutOp;
pub use linear::{LinearOp, linear};
pub use linear_geglu::{LinearGegluOp, has_linear_geglu, linear_geglu};
pub use matrix::{BlockType, MatrixType, ROW_FACTOR, Rotation, f8_e4m3, f8_e5m2, linear_workspace, to_f8_e4m3};
pub use modulated_norm::{ModulatedNormOp, RowNorm, modulated_norm, rms_norm};
pub use not_finite::count_not_finite;
pub use observer::InputObserver;
pub use operation::{Cost, Elements, Operand, Operation, WeightOperand};
pub use out_of_memory::is_out_of_memory;
pub use packing::{EightBits, Packing, Weight, WeightLayout};
pub use pixel_shuffle::{PixelShuffleOp, pixel_shuffle, pixel_unshuffle};
pub use primitives::{Binary, BinaryOp, IndexSelectOp, Map, MapOp, PremultiplyOp, ReduceOp, Reduction};
pub use rope::{RopeOp, RopePairs, rope};
pub use stop::StopSign;
pub use timestep_embedding::{TimestepEmbedding, TimestepEmbeddingOp, timestep_embedding};
pub use upsample_nearest::{UpsampleOp, upsample_nearest};
pub use w8a8::{
    Activated, ActivationLinearOp, ByteNumber, GegluLinearOp, Hidden, NormedConv2dOp, NormedLinearOp, W8Matrix,
    activation_linear, geglu_linear, normed_conv2d, normed_linear, w8a8_workspace,
};
pub use workspace::{Target, Workspace};
