//! What the kernels for the processor share: operands as f32 slices, and the matrix product.

mod gemm;
pub(crate) mod isa;
pub(crate) mod product;
mod view;

pub(crate) use gemm::{Matrix, matmul};
pub(crate) use view::View;
