//! Guidance in candle's primitives, which the CPU uses too.

use candle_core::{DType, Tensor};

use crate::error::Result;

pub(super) fn forward(both: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let halves = both.to_dtype(DType::F32)?.chunk(2, 0)?;
    let (uncond, cond) = (&halves[0], &halves[1]);
    Ok((uncond + (cond - uncond)?.broadcast_mul(&scale.to_dtype(DType::F32)?)?)?)
}
