//! Latents as patches of 2 x 2, normalized channel by channel by statistics of the training images: FLUX.2.

use candle_core::DType;
use kiln_nn::{Result, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::config::{PATCH, VaeConfig};

/// The mean and the variance of every channel of the patches.
pub(crate) struct Patches {
    mean: Param,
    variance: Param,
    eps: f64,
}

impl Patches {
    /// Declares `bn.running_mean` and `bn.running_var` `(latent_channels)` if the latents of `config` are patches.
    pub(crate) fn new(p: &ParamBuilder<'_>, config: &VaeConfig) -> Option<Self> {
        let statistic = |name: &str| p.param(name, &[config.latent_channels], Packing::AsStored);
        config.has_patches().then(|| Self {
            mean: statistic("bn.running_mean"),
            variance: statistic("bn.running_var"),
            eps: config.batch_norm_eps,
        })
    }

    /// The variances with epsilon, in f32.
    fn variance<T: TensorLike>(&self, x: &T) -> Result<T> {
        x.param(&self.variance)?.to_dtype(DType::F32)?.affine(1.0, self.eps)
    }

    /// Latents `(b, h, w, 4 c)` to the decoder's `(b, 2 h, 2 w, c)`. Channel `4 c + 2 dy + dx` is that of the pixel `(dy, dx)` of a patch.
    pub(crate) fn undo<T: TensorLike>(&self, x: &T) -> Result<T> {
        let std = self.variance(x)?.sqrt()?.to_dtype(x.dtype())?;
        x.broadcast_mul(&std)?.broadcast_add(&x.param(&self.mean)?)?.pixel_shuffle(PATCH)
    }

    /// Means and logarithms of variances of the encoder, `(b, 2 h, 2 w, c)` each, to those of latents `(b, h, w, 4 c)`.
    pub(crate) fn apply<T: TensorLike>(&self, mean: &T, log_variance: &T) -> Result<[T; 2]> {
        let variance = self.variance(mean)?;
        let std = variance.sqrt()?.to_dtype(mean.dtype())?;
        let shift = mean.param(&self.mean)?.affine(-1.0, 0.0)?;
        let mean = mean.pixel_unshuffle(PATCH)?.broadcast_add(&shift)?.broadcast_div(&std)?;
        let shift = variance.log()?.affine(-1.0, 0.0)?.to_dtype(log_variance.dtype())?;
        Ok([mean, log_variance.pixel_unshuffle(PATCH)?.broadcast_add(&shift)?])
    }
}
