//! The CPU as a back end.

use candle_core::Tensor;

use super::Backend;
use crate::error::Result;

/// The CPU. Its kernels refuse types that they do not read, since candle's primitives do not compute in them either.
pub(crate) struct Cpu;

impl Backend for Cpu {
    fn of(x: &Tensor) -> Result<Option<Self>> {
        Ok(x.device().is_cpu().then_some(Self))
    }
}
