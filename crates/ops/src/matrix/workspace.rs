//! Memory of a linear layer besides operands and result, where its matrix has a storage type of its own.

use candle_core::DType;

use super::MatrixType;
use crate::cpu::product::{PANEL, packed_len};
use crate::workspace::{Target, Workspace};

/// Elements of a band: few enough to stay in an L3 cache until a product has read them, enough for all threads to have
/// work.
const BAND: usize = 1 << 21;

/// Columns of the result that are dequantized at a time on the CPU, of `n` over `k`: whole panels.
pub(crate) fn band(n: usize, k: usize) -> usize {
    (BAND / k.max(1) / PANEL * PANEL).clamp(PANEL, n.max(1).next_multiple_of(PANEL))
}

/// Memory of [`crate::linear`] besides operands and result, from `k` to `n` channels, for activations of `dtype` and a
/// matrix of the type `matrices`, or of `dtype` if that is `None` or cannot store its rows.
pub fn linear_workspace(target: Target, dtype: DType, matrices: Option<MatrixType>, [n, k]: [usize; 2]) -> Workspace {
    if matrices.and_then(|matrices| matrices.row_bytes(k)).is_none() {
        return Workspace::default();
    }
    let size = dtype.size_in_bytes();
    match target {
        Target::Cpu { .. } => Workspace { call: 0, kept: packed_len(k, band(n, k)) * size },
        Target::Gpu => Workspace::call(n * k * size),
    }
}
