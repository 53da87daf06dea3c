//! Operations on tensors that samplers share.

use crate::Result;
use candle_core::Tensor;

/// The sum of factor times tensor, in f32. Terms with factor 0 are skipped, so that they cannot introduce a NaN. At
/// least one term is required.
pub(crate) fn linear(terms: &[(f64, &Tensor)]) -> Result<Tensor> {
    Ok(kiln_ops::weighted_sum(terms)?)
}

/// The quantile `ratio` of the values, interpolated linearly, as in `torch.quantile`.
pub(crate) fn quantile(mut values: Vec<f32>, ratio: f64) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let at = ratio * values.len().saturating_sub(1) as f64;
    let (low, weight) = (at.floor() as usize, (at - at.floor()) as f32);
    let high = (low + 1).min(values.len() - 1);
    values[low] + weight * (values[high] - values[low])
}
