//! What a linear layer takes besides operands and result where its matrix is stored in another type.

use candle_core::DType;

use super::MatrixType;
use crate::cpu::product::{PANEL, packed_len};
use crate::workspace::{Target, Workspace};

/// Numbers of a band: few enough to stay in a last-level cache until a product has read them, enough that each band has
/// work for all threads.
const BAND: usize = 1 << 21;

/// Columns of the result whose numbers are made at a time on the processor, of `n` over `k`: whole panels.
pub(crate) fn band(n: usize, k: usize) -> usize {
    (BAND / k.max(1) / PANEL * PANEL).clamp(PANEL, n.max(1).next_multiple_of(PANEL))
}

/// What [`crate::linear`] takes besides operands and result, to `n` channels from `k`, for activations of `dtype` and a
/// matrix of the type `matrices`, or of `dtype` where that is `None` or cannot hold its rows.
pub fn linear_workspace(target: Target, dtype: DType, matrices: Option<MatrixType>, [n, k]: [usize; 2]) -> Workspace {
    if matrices.and_then(|matrices| matrices.row_bytes(k)).is_none() {
        return Workspace::default();
    }
    let size = dtype.size_in_bytes();
    match target {
        Target::Processor { .. } => Workspace { call: 0, kept: packed_len(k, band(n, k)) * size },
        Target::Card => Workspace::call(n * k * size),
    }
}
