//! Gated activations in candle's primitives.

use candle_core::{D, DType, Tensor};

use super::Call;
use crate::activation::reference;
use crate::error::Result;

pub(super) fn forward(call: &Call<'_>) -> Result<Tensor> {
    let Call { function, gate, values } = *call;
    let (gates, values) = match values {
        Some(values) => (gate.clone(), values.clone()),
        None => {
            let n = gate.dim(D::Minus1)? / 2;
            (gate.narrow(D::Minus1, 0, n)?.contiguous()?, gate.narrow(D::Minus1, n, n)?)
        }
    };
    let activated = reference::forward(&gates.to_dtype(DType::F32)?, function)?;
    Ok((activated * values.to_dtype(DType::F32)?)?.to_dtype(gate.dtype())?)
}
