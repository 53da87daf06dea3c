//! The one operation on tensors that samplers are made of.

use crate::Result;
use candle_core::{DType, Tensor};

/// The sum of factor times tensor, in f32. Terms with factor 0 are left out, so that none of them can
/// bring in a NaN; at least one term must be given.
pub(crate) fn linear(terms: &[(f64, &Tensor)]) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for (factor, tensor) in terms.iter().filter(|(factor, _)| *factor != 0.0) {
        let term = tensor.to_dtype(DType::F32)?;
        let term = if *factor == 1.0 { term } else { term.affine(*factor, 0.0)? };
        sum = Some(match sum {
            None => term,
            Some(sum) => (sum + term)?,
        });
    }
    match sum {
        Some(sum) => Ok(sum),
        None => Ok(terms[0].1.to_dtype(DType::F32)?.zeros_like()?),
    }
}
