//! The ranges of the inputs of layers.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Tensor};
use kiln_ops::{Conv2d, Weight};
use kiln_weights::{InputObserver, ParamSpec};

/// The exponent of the activations' magnitude in a balance (alpha in SmoothQuant).
const ALPHA: f32 = 0.5;
/// The smallest and the largest factor of a balance.
const FACTORS: [f32; 2] = [1e-4, 1e4];

/// The range of each input channel of a layer, over all calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ChannelRanges {
    /// The least and the largest value of each channel; 0 is in every range.
    pub(super) channels: Vec<[f32; 2]>,
    /// The number of calls.
    pub(super) calls: usize,
}

/// Widens the ranges of a layer by each of its inputs.
#[derive(Debug, Default)]
pub(super) struct RangeObserver(Mutex<ChannelRanges>);

impl RangeObserver {
    /// The ranges so far.
    pub(super) fn ranges(&self) -> ChannelRanges {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl InputObserver for RangeObserver {
    fn observe(&self, x: &Tensor, _: &Weight, _: Option<Conv2d>) -> kiln_ops::Result<()> {
        let channels = x.dims().last().copied().unwrap_or(1).max(1);
        let values: Vec<f32> = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.calls += 1;
        ranges.channels.resize(channels, [0.0; 2]);
        for pixel in values.chunks_exact(channels) {
            for ([least, largest], value) in ranges.channels.iter_mut().zip(pixel) {
                (*least, *largest) = (least.min(*value), largest.max(*value));
            }
        }
        Ok(())
    }
}

impl ChannelRanges {
    /// The largest magnitude of each channel.
    pub(super) fn absmax(&self) -> Vec<f32> {
        self.channels.iter().map(|[least, largest]| largest.max(-least)).collect()
    }

    /// The range of all channels together, each times its factor of `balance`.
    pub(super) fn whole(&self, balance: Option<&[f32]>) -> [f32; 2] {
        let factors = balance.into_iter().flatten().copied().chain(std::iter::repeat(1.0));
        self.channels.iter().zip(factors).fold([0f32; 2], |[least, largest], (channel, factor)| {
            [least.min(channel[0] * factor), largest.max(channel[1] * factor)]
        })
    }

    /// The factors of the input channels of a layer with the weight `param`, whose elements are `values`: `w^(1 - alpha) /
    /// x^alpha`, with `w` and `x` the largest magnitudes of a channel's weights and activations (Xiao et al., SmoothQuant, arXiv
    /// 2211.10438, equation 4). 1 for a channel without any.
    pub(super) fn balance(&self, param: &ParamSpec, values: &[f32]) -> Vec<f32> {
        let channels = self.channels.len().max(1);
        let taps = param.shape.iter().skip(2).product::<usize>().max(1);
        let mut weights = vec![0f32; channels];
        for row in values.chunks_exact(channels * taps) {
            for (largest, taps) in weights.iter_mut().zip(row.chunks_exact(taps)) {
                *largest = taps.iter().fold(*largest, |largest, value| largest.max(value.abs()));
            }
        }
        let factor = |(weight, magnitude): (f32, f32)| match weight > 0.0 && magnitude > 0.0 {
            true => (weight.powf(1.0 - ALPHA) / magnitude.powf(ALPHA)).clamp(FACTORS[0], FACTORS[1]),
            false => 1.0,
        };
        weights.into_iter().zip(self.absmax()).map(factor).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use kiln_weights::Packing;

    use super::*;

    #[test]
    fn ranges_hold_all_inputs_and_balances_level_them() {
        let observer = RangeObserver::default();
        for rows in [[[1f32, -8.0, 0.0], [-2.0, 4.0, 0.0]], [[0.5, 6.0, 0.0], [3.0, -1.0, 0.0]]] {
            let x = Tensor::new(&rows, &Device::Cpu).unwrap();
            observer.observe(&x, &Weight::plain(&x).unwrap(), None).unwrap();
        }
        let ranges = observer.ranges();
        assert_eq!((ranges.calls, &*ranges.channels), (2, &[[-2.0, 3.0], [-8.0, 6.0], [0.0, 0.0]][..]));
        assert_eq!((ranges.absmax(), ranges.whole(None)), (vec![3.0, 8.0, 0.0], [-8.0, 6.0]));
        let param = ParamSpec { key: "a".into(), shape: vec![2, 3], packing: Packing::Linear, in_8_bits: &[] };
        let balance = ranges.balance(&param, &[3.0, -0.5, 1.0, 1.0, 0.25, 2.0]);
        assert_eq!(balance, [1.0, 0.25, 1.0]); // sqrt(3 / 3), sqrt(0.5 / 8)
        assert_eq!(ranges.whole(Some(&balance)), [-2.0, 3.0]);
    }
}
