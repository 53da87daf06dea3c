//! A prediction of what skipped blocks would add, on a straight line through what they added at the last two evaluations at which
//! they ran (the first order of TaylorSeer; arXiv 2503.06923).

use candle_core::{Device, Tensor};
use kiln_nn::{Result, TensorLike};

use crate::block_cache::{difference, row_of};

/// The line of each row.
pub(crate) struct ResidualTrend<T> {
    /// See [`kiln_network::slots::RESIDUAL_CHANGE`], as tokens `(b, n, c)`.
    pub(crate) change: T,
    /// See [`kiln_network::slots::RESIDUAL_TIMES`].
    pub(crate) times: T,
    /// The timesteps of this evaluation, `(1)` or `(b)` in f32.
    pub(crate) now: T,
}

impl<T: TensorLike> ResidualTrend<T> {
    /// The residuals of all rows now, if they were `residual` `(b, n, c)` at the last evaluation at which the blocks ran.
    pub(crate) fn predicted(&self, residual: &T) -> Result<T> {
        let ([b, _, c], times) = (residual.size3()?, self.all_times()?);
        let factors: Vec<f32> = times.iter().flat_map(|times| vec![times.factor(); c]).collect();
        let factors = residual.new_constant(&Tensor::from_vec(factors, (b, c), &Device::Cpu)?)?;
        residual.gated_residual(&factors, &self.change)
    }

    /// The residual `(1, n, c)` of row `row` now.
    pub(crate) fn predicted_row(&self, residual: &T, row: usize) -> Result<T> {
        let [_, _, c] = residual.size3()?;
        let factor = self.all_times()?.get(row).map_or(0.0, Times::factor);
        let factor = residual.new_constant(&Tensor::full(factor, (1, c), &Device::Cpu)?)?;
        residual.gated_residual(&factor, &row_of(&self.change, row)?)
    }

    /// Has all rows go on from `residual` of this evaluation; it was `before`.
    pub(crate) fn store(&self, residual: &T, before: &T) -> Result<()> {
        self.change.slice_set(&difference(residual, before)?, 0, 0)?;
        let next: Vec<f32> = self.all_times()?.iter().flat_map(Times::next).collect();
        let rows = next.len() / 2;
        self.times.slice_set(&self.times.new_constant(&Tensor::from_vec(next, (rows, 2), &Device::Cpu)?)?, 0, 0)
    }

    /// Has row `row` alone go on from `residual` `(1, n, c)` of this evaluation; it was `before`.
    pub(crate) fn store_row(&self, residual: &T, before: &T, row: usize) -> Result<()> {
        self.change.slice_set(&difference(residual, before)?, 0, row)?;
        let next = self.all_times()?.get(row).map_or([0.0; 2], Times::next);
        self.times.slice_set(&self.times.new_constant(&Tensor::new(&[next], &Device::Cpu)?)?, 0, row)
    }

    /// The times of all rows; zeros in a plan.
    fn all_times(&self) -> Result<Vec<Times>> {
        let [b, _] = self.times.size2()?;
        let times = self.times.values()?.unwrap_or_else(|| vec![0.0; 2 * b]);
        let now = self.now.values()?.unwrap_or_else(|| vec![0.0]);
        let row = |(row, pair): (usize, &[f32])| Times { now: now[row % now.len()], stored: [pair[0], pair[1]] };
        Ok(times.chunks_exact(2).enumerate().map(row).collect())
    }
}

/// The timesteps of one row.
struct Times {
    now: f32,
    /// The last two evaluations at which all blocks ran, the later one first; 0 for none.
    stored: [f32; 2],
}

impl Times {
    /// How far this evaluation is from the last one, in units of the distance of the last two. 0 if there is only one.
    fn factor(&self) -> f32 {
        let [last, before] = self.stored;
        let factor = (self.now - last) / (last - before);
        if factor.is_finite() { factor } else { 0.0 }
    }

    /// The last two after this evaluation. After the first one both are its own: it has no change.
    fn next(&self) -> [f32; 2] {
        let [last, _] = self.stored;
        [self.now, if last == 0.0 { self.now } else { last }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_begins_with_the_second_evaluation() {
        let mut times = Times { now: 1000.0, stored: [0.0; 2] };
        assert_eq!(times.next(), [1000.0, 1000.0]);
        times = Times { now: 900.0, stored: times.next() };
        assert_eq!((times.factor(), times.next()), (0.0, [900.0, 1000.0]));
        times = Times { now: 850.0, stored: times.next() };
        assert_eq!((times.factor(), times.next()), (0.5, [850.0, 900.0]));
    }
}
