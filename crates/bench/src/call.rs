//! A whole call as `kiln txt2img` makes it once it is warm: from the tokens of both prompts to PNG files in memory, through
//! the sampler loop of the engine.
//!
//! Two things differ, since the networks have random weights. The denoiser says that the noise is its own input rather
//! than what the U-Net predicts, so that the latents keep the range that the decoder is made for. And images with values
//! that are not finite are counted but not refused.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use kiln_engine::pipeline::{
    ConditioningPlan, Conditions, DecoderNetwork as Network, Group, Guidance, RecordedStep, Start, decoder_flop,
    text_flop,
};
use kiln_engine::{GeneratedImage, RunningBatch, Stage};
use kiln_mempool::mark_stage;
use kiln_network::text::{TextNetwork, TextStage};
use kiln_network::{Denoiser, Forward, Inputs, LatentSpec, StepShape};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_ops::{ByteRounding, count_not_finite, image_bytes};
use kiln_scheduler::{Convention, ImageNoise, SamplerKind, Schedule, SchedulerConfig, SigmaSchedule};
use kiln_vae::Tiling;
use kiln_weights::Segments;

use super::report::StageReport;
use super::stage::{CFG_SCALE, InMemory, Meter, SEED, Weights, encode, shared_conditions};
use super::{Architecture, BenchStage};
use crate::error::Result;

/// Stable Diffusion's noise. Presets have no schedule; the sampler's arithmetic is small next to the denoiser's.
const SCHEDULE: &str = r#"{
    "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
    "timestep_spacing": "leading", "steps_offset": 1
}"#;
/// The noise levels of flow models.
const FLOW_SCHEDULE: &str = r#"{ "_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0 }"#;

/// A call that can be made again and again.
struct Call<'a> {
    model: &'a Architecture,
    /// Images of a call.
    n: usize,
    device: &'a Device,
    dtype: DType,
    text: Box<dyn TextStage>,
    unet: Box<dyn Denoiser>,
    decoder: Network,
    schedule: Arc<Schedule>,
}

impl Meter<'_, '_> {
    /// Prompts to PNG files, with all networks in memory.
    pub(super) fn call(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let is_flow = model.family.flow(false, Convention::Diffusers).is_some();
        let config = SchedulerConfig::from_json(if is_flow { FLOW_SCHEDULE } else { SCHEDULE })?;
        let schedule = config.resolve(SamplerKind::Euler, SigmaSchedule::Default)?;
        let call = Call {
            model,
            n,
            device: self.device,
            dtype,
            text: self.text_stage()?,
            unet: self.unet()?,
            decoder: Network::of(model),
            schedule: Arc::new(Schedule::new(&schedule, self.plan.steps)?),
        };
        let weights = |segments, dtype| Weights { segments, dtype, flop: &[] };
        let mut networks =
            vec![weights(call.decoder.segments(), model.decoder_dtype(dtype)), weights(call.unet.segments(), dtype)];
        let texts = call.text.networks();
        networks.extend(texts.iter().map(|&TextNetwork { segments, .. }| weights(segments, dtype)));
        let loaded = self.load("the model", &networks)?;

        let size = model.latent_size();
        let texts = model.halves() as f64 * text_flop(call.text.as_ref(), call.text.least())?;
        let step: f64 = self.step_flop(&*call.unet, model.halves() * n)?.iter().sum();
        let steps = call.schedule.points().len() as f64 * step;
        let flop = texts + steps + n as f64 * decoder_flop(&call.decoder, size)?;
        let (mut recorded, mut texts) =
            (RecordedStep::default(), InMemory::new(&self.placement(dtype), loaded.is_resident()));
        let mut run = || call.run(&mut recorded, &mut texts);
        self.until_recorded(&mut run)?;
        self.time(BenchStage::Call, &loaded, flop, &mut run)
    }
}

impl Call<'_> {
    fn run(&self, recorded: &mut RecordedStep, texts: &mut InMemory) -> Result<()> {
        let mut parts = Parts::new();
        mark_stage(Stage::Encode.id());
        let conditions = self.conditions(texts)?;
        parts.end("texts");
        mark_stage(Stage::Denoise.id());
        let (h, w) = self.model.latent_size();
        let mut noise = ImageNoise::new(SEED, self.n);
        let LatentSpec { channels, extra_channels, .. } = self.model.latents();
        let latents = noise.latents((channels, h, w))?.to_device(self.device)?;
        let extra = match extra_channels {
            0 => None,
            extra => Some(noise.latents((extra, h, w))?.to_device(self.device)?),
        };
        let start = Start::of_latents((latents * self.schedule.init_noise_sigma())?).with_extra(extra);
        let (calls, steps) = (self.schedule.points().len(), self.schedule.points().len());
        let guidance = Guidance::plain(CFG_SCALE, self.model.guided, calls);
        let group = Group::new(self.schedule.clone(), start, Box::new(noise), conditions, guidance, steps)?;
        let mut running = RunningBatch::new();
        let id = running.join(group, None);
        parts.end("inputs");
        for call in 0..calls {
            running.step(&Echo(&*self.unet), Some(recorded), self.dtype, None)?;
            if call == 0 {
                parts.end("first step, launched");
            }
        }
        let latents = running.finish(id)?.latents().clone();
        count_not_finite(&latents)?;
        parts.end("steps");
        mark_stage(Stage::Decode.id());
        (0..self.n).try_for_each(|index| self.decode(index, &latents.narrow(0, index, 1)?, recorded, &mut parts))?;
        parts.log();
        Ok(())
    }

    /// The texts, one after another as a run encodes them, as the conditions of all images.
    fn conditions(&self, on: &mut InMemory) -> Result<Conditions> {
        let plan = ConditioningPlan::plain(self.n, "1", self.model.guided.then_some("0"));
        let encoded = |text: usize| encode(self.text.as_ref(), text, on);
        let encoded = (0..plan.texts.len()).map(encoded).collect::<Result<_>>()?;
        Ok(Conditions::new(plan, encoded, shared_conditions(self.model, self.device)?)?)
    }

    /// Latents `(1, c, h, w)` to a PNG file in memory.
    fn decode(&self, index: usize, latents: &Tensor, recorded: &RecordedStep, parts: &mut Parts) -> Result<()> {
        let dtype = self.model.decoder_dtype(self.dtype);
        let image = recorded.lend(|| -> Result<_> {
            let image = self.decoder.decode(latents, dtype, Tiling::Whole)?;
            let bytes = image_bytes(&image, ByteRounding::Nearest)?.to_device(&Device::Cpu)?;
            count_not_finite(&image)?;
            Ok(bytes)
        })?;
        parts.end("decode");
        let image = GeneratedImage::without_settings(index, SEED, &image, latents.to_device(&Device::Cpu)?)?;
        let failed = |error| kiln_files::write_error(Path::new("a PNG file in memory"))(io::Error::other(error));
        image.png().map(drop).map_err(failed)?;
        parts.end("png");
        Ok(())
    }
}

/// How long the host took for the parts of a call. A GPU may still compute when the host is done with a part; it is waited for
/// after the steps and after decoding.
struct Parts {
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl Parts {
    fn new() -> Self {
        Self { last: Instant::now(), parts: Vec::new() }
    }

    /// The part `name` ends now.
    fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.parts.push((name, now - self.last));
        self.last = now;
    }

    fn log(&self) {
        let parts: Vec<String> = self.parts.iter().map(|(name, time)| format!("{name} {time:.1?}")).collect();
        tracing::info!("a call: {}", parts.join(", "));
    }
}

/// Runs a denoiser but returns its input, so that random weights cannot overflow.
struct Echo<'a>(&'a dyn Denoiser);

impl<'a, T: Clone> Forward<T> for Echo<'a>
where
    dyn Denoiser + 'a: Forward<T>,
{
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> kiln_network::Result<T> {
        self.0.forward(x, timesteps, inputs)?;
        Ok(x.clone())
    }

    fn prepare(&self, inputs: Inputs<T>) -> kiln_network::Result<Inputs<T>> {
        self.0.prepare(inputs)
    }

    fn for_size(&self, inputs: Inputs<T>, size: [usize; 2]) -> kiln_network::Result<Inputs<T>> {
        self.0.for_size(inputs, size)
    }
}

impl Denoiser for Echo<'_> {
    fn segments(&self) -> &Segments {
        self.0.segments()
    }

    fn latents(&self) -> LatentSpec {
        self.0.latents()
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        self.0.meta_inputs(device, shape, dtype)
    }
}
