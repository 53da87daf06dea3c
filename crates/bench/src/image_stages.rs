//! Stages whose input is an image: encoding it to latents, and enlarging it.

use candle_core::{DType, Tensor};
use kiln_engine::pipeline::{DecoderNetwork, EncoderNetwork};
use kiln_nn::MetaDevice;
use kiln_ops::Target;
use kiln_upscale::{Rrdb, RrdbConfig, Upscaler};
use kiln_vae::Tiling;
use kiln_weights::RandomSource;

use super::BenchStage;
use super::report::StageReport;
use super::stage::{Meter, SEED, Weights};
use crate::error::Result;

/// The shape of RealESRGAN_x4plus.
const X4PLUS: RrdbConfig =
    RrdbConfig { in_channels: 3, out_channels: 3, features: 64, growth: 32, blocks: 23, upsamples: 2, unshuffle: 1 };

/// A network of RealESRGAN_x4plus's shape, without weights.
pub(super) fn upscaler() -> Result<Upscaler> {
    Ok(Upscaler::from_source(RandomSource::new(Rrdb::new(&X4PLUS).segments(), SEED), None)?)
}

impl Meter<'_, '_> {
    /// One image to its latents.
    pub(super) fn vae_encode(&mut self) -> Result<StageReport> {
        let (model, dtype) = (self.model, self.model.decoder_dtype(self.dtype));
        let encoder = EncoderNetwork::of(&DecoderNetwork::kl(model.vae.clone()));
        let weights = Weights { segments: encoder.segments(), dtype, flop: &[] };
        let loaded = self.load("the VAE's encoder", &[weights])?;
        let shape = [1, 3, model.height, model.width];
        let meta = MetaDevice::new(Target::Gpu, dtype);
        encoder.encode(&meta.tensor(&shape, DType::F32), dtype, Tiling::Whole)?;
        let image = self.image()?;
        self.time(BenchStage::VaeEncode, &loaded, meta.take_flop().total(), &mut || {
            encoder.encode(&image, dtype, Tiling::Whole)?;
            Ok(())
        })
    }

    /// One image to four times its width and height.
    pub(super) fn upscale(&mut self) -> Result<StageReport> {
        let (size, dtype) = ([self.model.height, self.model.width], self.dtype);
        let network = upscaler()?;
        let loaded = self.load("the upscaler", &[Weights { segments: network.segments(), dtype, flop: &[] }])?;
        let strips = network.fastest(size, Target::of(self.device));
        let meta = MetaDevice::new(Target::Gpu, dtype);
        network.forward(&meta.tensor(&[1, 3, size[0], size[1]], dtype), strips)?;
        let image = self.image()?.to_dtype(dtype)?;
        self.time(BenchStage::Upscale, &loaded, meta.take_flop().total(), &mut || {
            network.forward(&image, strips)?;
            Ok(())
        })
    }

    /// Random values in the shape of an image, `(1, 3, h, w)` in f32.
    fn image(&self) -> Result<Tensor> {
        self.normal(1, (3, self.model.height, self.model.width))
    }
}
