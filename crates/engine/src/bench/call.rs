//! A whole call as `kiln txt2img` makes it once it is warm: from the tokens of both prompts to PNG files in memory.
//!
//! Two things differ, since random networks draw nothing. The sampler is told that the noise is its own input rather
//! than what the U-Net answers, as a network would that knows nothing but noise: the latents keep the size that the
//! decoder is made for. And pictures with values that are no numbers are counted but not refused.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{D, DType, Device, Tensor};
use kiln_clip::TextEncoder;
use kiln_mempool::mark_stage;
use kiln_scheduler::{ImageNoise, SamplerKind, Schedule, SchedulerConfig, SigmaSchedule, sample};
use kiln_unet::{Conditioning, Unet};
use kiln_vae::Tiling;

use super::report::StageReport;
use super::stage::{CFG_SCALE, Meter, SEED, TOKENS, Weights, added, encode, texts_flop};
use super::{BenchModel, BenchStage};
use crate::error::{Error, Result};
use crate::output::png;
use crate::picture::{Picture, to_rgb};
use crate::pipeline::decoder::Network;
use crate::pipeline::event::Stage;
use crate::pipeline::step::{GuidedUnet, RecordedStep, count_not_finite};
use crate::plan::{decoder_flop, unet_flop};

/// Stable Diffusion's noise. Presets have no schedule; the sampler's arithmetic is nothing beside the U-Net's.
const SCHEDULE: &str = r#"{
    "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
    "timestep_spacing": "leading", "steps_offset": 1
}"#;

/// A call that can be made again and again.
struct Call<'a> {
    model: &'a BenchModel,
    /// Pictures of a call.
    n: usize,
    device: &'a Device,
    dtype: DType,
    encoders: Vec<TextEncoder>,
    unet: Unet,
    decoder: Network,
    schedule: Schedule,
}

impl Meter<'_, '_> {
    /// Prompts to PNG files, with all networks in memory.
    pub(super) fn call(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let schedule = SchedulerConfig::from_json(SCHEDULE)?.resolve(SamplerKind::Euler, SigmaSchedule::Default)?;
        let call = Call {
            model,
            n,
            device: self.device,
            dtype,
            encoders: self.encoders()?,
            unet: Unet::new(model.unet.clone()),
            decoder: Network::kl(model.vae.clone()),
            schedule: Schedule::new(&schedule, self.plan.steps)?,
        };
        let weights = |segments, dtype| Weights { segments, dtype, flop: &[] };
        let mut networks =
            vec![weights(call.decoder.segments(), model.decoder_dtype(dtype)), weights(call.unet.segments(), dtype)];
        networks.extend(call.encoders.iter().map(|encoder| weights(encoder.segments(), dtype)));
        let loaded = self.load("the model", &networks)?;

        let size = model.latent_size();
        let texts = 2.0 * texts_flop(&call.encoders)?;
        let step: f64 = unet_flop(&call.unet, 2 * n, size, TOKENS)?.iter().sum();
        let steps = call.schedule.points().len() as f64 * step;
        let flop = texts + steps + n as f64 * decoder_flop(&call.decoder, size)?;
        let mut recorded = RecordedStep::default();
        if self.device.is_cuda() && self.plan.warmup == 0 {
            call.run(&mut recorded)?; // records the step
        }
        self.time(BenchStage::Call, &loaded, flop, &mut || call.run(&mut recorded))
    }
}

impl Call<'_> {
    fn run(&self, recorded: &mut RecordedStep) -> Result<()> {
        mark_stage(Stage::Encode.id());
        let conditioning = self.conditioning()?;
        mark_stage(Stage::Denoise.id());
        let mut unet = GuidedUnet::new(&self.unet, Some(recorded), &conditioning, Some(CFG_SCALE), self.dtype)?;
        let (h, w) = self.model.latent_size();
        let mut noise = ImageNoise::new(SEED, self.n);
        let latents = noise.latents((self.model.unet.in_channels, h, w))?.to_device(self.device)?;
        let latents = (latents * self.schedule.init_noise_sigma())?;
        let denoise = |x: &Tensor, timestep: f64| -> Result<Tensor> {
            unet.forward(x, timestep)?;
            Ok(x.clone())
        };
        let latents =
            sample::<Error, _>(&self.schedule, denoise, &latents, &mut noise, &mut |_| ControlFlow::Continue(()))?;
        count_not_finite(&latents)?;
        mark_stage(Stage::Decode.id());
        (0..self.n).try_for_each(|index| self.draw(index, &latents.narrow(0, index, 1)?, recorded))
    }

    /// Both texts, one after another as a pipeline does it, as the conditions of all images.
    fn conditioning(&self) -> Result<Conditioning> {
        let (mut contexts, mut pooled) = (Vec::new(), Vec::new());
        for text in 0..2 {
            let outputs = encode(&self.encoders, self.model.family, text, self.device)?;
            let hidden: Vec<_> = outputs.iter().map(|output| &output.hidden).collect();
            contexts.push(Tensor::cat(&hidden, D::Minus1)?.repeat((self.n, 1, 1))?); // (n, 77, d)
            pooled.extend(outputs.last().map(|output| output.pooled.repeat((self.n, 1))).transpose()?); // (n, d)
        }
        let added = |_| added(self.model, Tensor::cat(&pooled, 0)?);
        Ok(Conditioning {
            context: Tensor::cat(&contexts, 0)?,
            added: self.model.unet.pooled_dim().map(added).transpose()?,
            guidance: super::stage::guidance(self.model, self.device)?,
        })
    }

    /// Latents `(1, c, h, w)` to a PNG file in memory.
    fn draw(&self, index: usize, latents: &Tensor, recorded: &RecordedStep) -> Result<()> {
        let dtype = self.model.decoder_dtype(self.dtype);
        let image = recorded.lend(|| -> Result<_> {
            Ok(self.decoder.decode(latents, dtype, Tiling::Whole)?.to_device(&Device::Cpu)?)
        })?;
        count_not_finite(&image)?;
        let picture = Picture {
            index,
            seed: SEED,
            width: self.model.width,
            height: self.model.height,
            rgb: to_rgb(&image)?,
            parameters: String::new(),
            settings: String::new(),
            latents: latents.to_device(&Device::Cpu)?,
        };
        let failed = |error| Error::write(Path::new("a PNG file in memory"))(io::Error::other(error));
        png(&picture).map(drop).map_err(failed)
    }
}
