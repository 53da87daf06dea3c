//! FreeU (Si et al., arXiv 2309.11497): the up path's own features are amplified, and the skip connections lose a part of
//! their low frequencies.

use candle_core::DType;
use kiln_nn::{Reduction, Result, TensorLike};

use super::SkipHook;
use super::low_frequencies::scale_low_frequencies;

/// Whose rule it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FreeuRule {
    /// diffusers' `enable_freeu`: in the first and the second up block, by a constant factor.
    #[default]
    Diffusers,
    /// The first version of its authors, and of ComfyUI's `FreeU`: where the up path has four times and twice the channels of
    /// the first convolution, by a constant factor.
    V1,
    /// The second version, ComfyUI's `FreeU_V2`: in the same layers, by a factor that follows the mean over all channels.
    V2,
}

/// Its factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FreeU {
    /// Factors of the up path's features, of the first and of the second stage.
    pub backbone: [f64; 2],
    /// Factors of the skip connections' low frequencies.
    pub skip: [f64; 2],
    /// Which layers are of these stages.
    pub rule: FreeuRule,
}

impl FreeU {
    /// Its values as constants of a call.
    pub(crate) fn constants(&self) -> impl Iterator<Item = u64> {
        self.backbone.into_iter().chain(self.skip).map(f64::to_bits).chain([self.rule as u64])
    }

    /// The values of such constants.
    pub(crate) fn of_constants(mut constants: impl Iterator<Item = u64>) -> Option<Self> {
        let mut factor = || constants.next().map(f64::from_bits);
        let (backbone, skip) = ([factor()?, factor()?], [factor()?, factor()?]);
        let rules = [FreeuRule::Diffusers, FreeuRule::V1, FreeuRule::V2];
        let number = constants.next()?;
        let rule = rules.into_iter().find(|rule| *rule as u64 == number)?;
        Some(Self { backbone, skip, rule })
    }

    /// The stage of a layer of up block `block` whose input has `channels` channels.
    fn stage(&self, block: usize, channels: usize, model_channels: usize) -> Option<usize> {
        match self.rule {
            FreeuRule::Diffusers => Some(block).filter(|&block| block < 2),
            FreeuRule::V1 | FreeuRule::V2 => [4, 2].iter().position(|times| channels == times * model_channels),
        }
    }
}

/// FreeU in a network.
pub(crate) struct FreeuHook {
    pub(crate) freeu: FreeU,
    /// Channels of the first convolution.
    pub(crate) model_channels: usize,
}

impl<T: TensorLike> SkipHook<T> for FreeuHook {
    fn join(&self, block: usize, _layer: usize, x: T, skip: T) -> Result<(T, T)> {
        let [_, _, _, c] = x.size4()?;
        let Self { freeu, model_channels } = self;
        let Some(stage) = freeu.stage(block, c, *model_channels) else { return Ok((x, skip)) };
        let (amplified, rest) = (x.narrow(3, 0, c / 2)?, x.narrow(3, c / 2, c - c / 2)?.contiguous()?);
        let factor = freeu.backbone[stage];
        let amplified = match freeu.rule {
            FreeuRule::Diffusers | FreeuRule::V1 => amplified.affine(factor, 0.0)?,
            FreeuRule::V2 => amplified.broadcast_mul(&mean_factors(&x, factor)?.to_dtype(x.dtype())?)?,
        };
        drop(x);
        Ok((amplified.concat_channels(&rest)?, scale_low_frequencies(&skip, freeu.skip[stage])?))
    }
}

/// A factor for each pixel of `x` `(b, h, w, c)`, `(b, h, w, 1)` in f32: from 1 where an image's mean over all channels is the
/// least, to `factor` where it is the largest.
fn mean_factors<T: TensorLike>(x: &T, factor: f64) -> Result<T> {
    let [b, h, w, c] = x.size4()?;
    let mean = x.to_dtype(DType::F32)?.reshape(&[b, h * w, c])?.reduce(Reduction::Mean, 2)?;
    let (least, most) = (mean.reduce(Reduction::Min, 1)?, mean.reduce(Reduction::Max, 1)?); // (b, 1, 1)
    let relative = mean.broadcast_add(&least.affine(-1.0, 0.0)?)?.broadcast_div(&most.sub(&least)?)?;
    relative.affine(factor - 1.0, 1.0)?.reshape(&[b, h, w, 1])
}
