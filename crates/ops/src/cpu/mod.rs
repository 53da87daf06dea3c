//! Shared parts of the CPU kernels: element types, operands as slices, and the matrix product.
//!
//! Convolutions, linear layers and attention use one matrix product (`ops/src/cpu/product`). Weights are packed into
//! panels of 32 columns when they enter the slab. A task gathers a block of rows (for a convolution, the windows of
//! some pixels) into a buffer that fits the L2 cache, and multiplies it with the panels of its columns. There are
//! kernels for AMX (tiles of bf16), for AVX-512 with and without bf16 dot products, for AVX2, for NEON with and without
//! bf16 dot products, and portable loops. The best one for the CPU is selected; `KILN_ISA` (`portable`, `avx2`,
//! `avx512`, `avx512bf16`, `amx`; on 64-bit ARM `portable`, `neon`, `neonbf16`) selects another one that the CPU has.
//! The order of a sum depends only on the kernel and the inner dimension, so that neither the number of threads nor the
//! other images of a batch change a bit.
//!
//! Products of bytes (`--compute int8`, `ops/src/int8`, `ops/src/cpu/product/bytes.rs`) have kernels of their own on
//! every path. The input is quantized once a call into a buffer, from which tasks gather. Sums are exact, so their
//! order does not matter. Which parameters are in 8 bits is a property of their segment (`weights/src/eight_bits.rs`);
//! a layer only says that it allows it (`ParamBuilder::allows_8_bits`).
//!
//! A weight may have an observer (`ops/src/observer.rs`), which gets the inputs of its products; `Segments::observe`
//! sets them. So `kiln calibrate` (`engine/src/calibration`) measures each layer while images are made, without a word
//! of it in the networks. Its file is `engine/src/scales_file.rs`.
//!
//! AMX needs Linux, which is asked for permission (`ops/src/cpu/permission.rs`); where it refuses, AVX-512 is used. A
//! panel of bf16 has pairs of rows, which are the rows of two tiles as they are, so weights are packed the same for
//! both. A call keeps 32 rows and 32 columns of the result in four tiles. Tests run the same calls with emulated tiles
//! on every CPU.
//!
//! What kernels multiply is f32, or bf16 where the CPU has products of it (`ops/src/cpu/operand.rs`). Weights and
//! activations in f16, and in bf16 on other CPUs, are converted where they are gathered, transformed or packed, and in
//! the kernels for linear layers. Values in between (transformed tiles, the weights of an attention) are then not
//! rounded to 16 bits.
//!
//! Element-wise loops are plain Rust, compiled for every path (`for_every_isa`, `ops/src/cpu/math.rs`). Where values
//! must stay in registers from one loop to the next, as the tiles of Winograd's algorithm, `Rounding::Vector`
//! (`ops/src/cpu/vector.rs`) is the register of the path.
//!
//! 3x3 convolutions of stride 1 use Winograd's algorithm (`ops/src/conv2d/cpu/winograd.rs`), except with AMX's tiles,
//! which multiply faster than the inputs are transformed. Operands in f32 use F(4x4, 3x3): 36 multiplications for 16
//! outputs instead of 144, with about twice the error of the sum over taps. Operands in bf16 use F(2x2, 3x3): 16 for
//! four outputs instead of 36. Strips of a map begin at multiples of four rows (`STRIP_ROWS`), so that their tiles are
//! those of the whole map. Stored weights stay as they are; their transform lives for a call or a task. Attention reads
//! keys in blocks of fixed size, and never stores more scores than those of a few queries and one block. Scratch
//! buffers stay with their thread, the largest for whoever asks first (`ops/src/cpu/scratch.rs`).

#[macro_use]
mod element;
#[macro_use]
mod operand;
pub(crate) mod isa;
pub(crate) mod math;
pub(crate) mod permission;
pub(crate) mod product;
pub(crate) mod rounding;
pub(crate) mod scratch;
mod shared;
pub(crate) mod vector;
mod view;

pub(crate) use element::Element;
pub(crate) use operand::{Operand, widen};
pub(crate) use scratch::Scratch;
pub(crate) use shared::Shared;
pub use view::f32_values;
pub(crate) use view::{Bytes, View};
