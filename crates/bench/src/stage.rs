//! One stage with random weights, timed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_engine::pipeline::{
    DecoderNetwork as Network, GuidedStep, RUNS_UNTIL_RECORDED, RecordedStep, SharedConditions, SystemRequests,
    TimeIds, decoder_flop, denoiser_flop, preparation_flop, supported_dtype, text_flop,
};
use kiln_engine::{ExecutionTarget, StepTrace};
use kiln_mempool::{Category, DevicePool, SystemMemory, mark_stage};
use kiln_network::slots::EXTRA_CHANNELS;
use kiln_network::text::{PromptText, Runs, TextDevice, TextStage, TextTensors};
use kiln_network::{Denoiser, Inputs, OnBackend, TextWidths};
use kiln_ops::graph::RecordedCalls;
use kiln_ops::portable::Backend;
use kiln_ops::trace::Trace;
use kiln_prompt::TextOptions;
use kiln_request::SizeConditions;
use kiln_scheduler::ImageNoise;
use kiln_vae::Tiling;
use kiln_weights::{MatrixType, ParamSource, Placement, RandomSource, Segments, load, load_open};

use super::report::{CardMemory, StageReport, Summary};
use super::streamed::Streamed;
use super::{Architecture, BenchEvent, BenchPlan, BenchStage};
use crate::error::{Error, Result};

/// Context tokens of a text in a step of a U-Net: one chunk of CLIP's.
pub(super) const TOKENS: usize = 77;
/// The guidance scale of FLUX.1 dev, in the unit of its input.
const DISTILLED_GUIDANCE: f32 = 3500.0;
/// A timestep in the middle of the schedule; none is faster than another.
pub(super) const TIMESTEP: f64 = 500.0;
/// Strength of the guidance; any but 1 is the same work.
pub(super) const CFG_SCALE: f64 = 7.0;
/// The seed of weights and inputs.
pub(super) const SEED: u64 = 0;

/// Measures the stages of one model.
pub(crate) struct Meter<'a, 'w> {
    pub(crate) plan: &'a BenchPlan,
    pub(crate) model: &'a Architecture,
    pub(crate) device: &'a Device,
    /// A GPU that is not candle's.
    pub(crate) backend: Option<&'a Arc<dyn Backend>>,
    pub(crate) dtype: DType,
    /// The type of linear layers' matrices, if it is another one.
    pub(crate) matrices: Option<MatrixType>,
    /// The device with its rates, for plans of streamed weights.
    pub(crate) on: ExecutionTarget,
    pub(crate) pool: Option<&'a DevicePool>,
    pub(crate) watch: &'w mut dyn FnMut(BenchEvent<'_>) -> ControlFlow<()>,
    /// The step by operator, once it was traced.
    pub(crate) trace: Option<StepTrace>,
}

/// Networks that are loaded, or streamed.
pub(super) struct Loaded {
    parameters: usize,
    seconds: f64,
    streams: Vec<Streamed>,
}

impl Loaded {
    /// Whether the weights stay where they are.
    pub(super) fn is_resident(&self) -> bool {
        self.streams.is_empty()
    }
}

/// A network whose weights are made.
pub(super) struct Weights<'a> {
    pub(super) segments: &'a Segments,
    pub(super) dtype: DType,
    /// Operations of each segment, where they are known.
    pub(super) flop: &'a [f64],
}

impl Meter<'_, '_> {
    /// Loads a stage's network, measures it, and drops it.
    pub(crate) fn measure(&mut self, stage: BenchStage) -> Result<StageReport> {
        self.tell(stage, None)?;
        mark_stage(stage.id());
        if let Some(pool) = self.pool {
            pool.trim(0.0)?; // what the stage before left
            pool.reset_peaks()?;
        }
        match stage {
            BenchStage::Step => self.step(),
            BenchStage::ControlStep => self.control_step(),
            BenchStage::IpAdapterStep => self.ip_adapter_step(),
            BenchStage::DeepCacheSteps => self.deep_cache_steps(),
            BenchStage::BlockCacheStep => self.block_cache_step(),
            BenchStage::Vae => self.vae(),
            BenchStage::VaeEncode => self.vae_encode(),
            BenchStage::Upscale => self.upscale(),
            BenchStage::Text => self.text(),
            BenchStage::Call => self.call(),
        }
    }

    fn step(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let unet = self.unet()?;
        let (h, w) = model.latent_size();
        let rows = model.halves() * n;
        let flop = self.step_flop(&*unet, rows)?;
        let weights = Weights { segments: unet.segments(), dtype, flop: &flop };
        let mut loaded = self.load("the denoiser", &[weights])?;
        let latents = self.normal(n, (model.latents().channels, h, w))?;
        let (inputs, mut recorded) = (self.inputs(&*unet, rows)?, RecordedStep::default());
        let guidance = model.guided.then_some(CFG_SCALE);
        let step = GuidedStep::new(&inputs, guidance, self.dtype)?.prepared(&*unet)?;
        let mut guided = |trace| -> Result<()> {
            step.run(&*unet, Some(&mut recorded), &latents, &[TIMESTEP], trace)?;
            Ok(())
        };
        self.until_recorded(&mut || guided(None))?;
        let before = loaded.streams.first().map(Streamed::report).transpose()?;
        // Segments are timed from here on: the first runs are slower.
        loaded.streams.first().map(Streamed::take_compute_seconds).transpose()?;
        let mut run = || guided(None);
        let mut report = self.time(BenchStage::Step, &loaded, flop.iter().sum(), &mut run)?;
        let streamed = loaded.streams.pop(); // for as long as there are steps
        if let (Some(streamed), Some(before)) = (&streamed, before) {
            let runs = self.plan.warmup + self.plan.runs;
            let (counted, computed) = (streamed.report()?.since(&before), streamed.take_compute_seconds()?);
            let resident = self.unet()?;
            load(resident.segments(), &RandomSource::new(resident.segments(), SEED), &self.placement(dtype))?;
            let mut alone = || -> Result<()> {
                step.run(&*resident, None, &latents, &[TIMESTEP], None)?;
                Ok(())
            };
            let seconds = self.in_turns([&mut || guided(None), &mut || streamed.pass(), &mut alone])?;
            report.stream = Some(Streamed::stage(streamed.residency(), counted, runs, seconds, &flop, computed));
        }
        if self.plan.trace {
            let kind = if model.guided { "guided step" } else { "step" };
            let title = format!("{}: {kind}, {n} of {}x{}", model.name, model.width, model.height);
            let mut trace = Trace::default();
            guided(Some(&mut trace))?;
            let before = self.plan.warmup + self.plan.runs;
            self.trace = Some(StepTrace::new(title, self.device, self.dtype, before, trace));
        }
        Ok(report)
    }

    /// The model's denoiser, with the layers in 8 bits that the setup asks for.
    ///
    /// # Errors
    /// See [`kiln_engine::Setup::scaled_layers`].
    pub(super) fn unet(&self) -> Result<Box<dyn Denoiser>> {
        let unet = self.model.denoiser();
        unet.segments().set_8_bits(self.plan.setup.scaled_layers(None, self.device.is_cuda())?.as_deref());
        Ok(match self.backend {
            Some(backend) => Box::new(OnBackend::new(unet, backend.clone())),
            None => unet,
        })
    }

    /// Operations of each segment of the denoiser in a step of a run: without the text's keys and values, which a run makes once,
    /// unless weights stream.
    pub(super) fn step_flop(&self, denoiser: &dyn Denoiser, rows: usize) -> Result<Vec<f64>> {
        let tokens = self.text_stage()?.least();
        let mut flop = denoiser_flop(denoiser, rows, self.model.latent_size(), tokens)?;
        if self.plan.stream.is_none() {
            let of_keys = preparation_flop(denoiser, rows, tokens)?;
            flop.iter_mut().zip(of_keys).for_each(|(flop, of_keys)| *flop -= of_keys);
        }
        Ok(flop)
    }

    /// Runs a step until it takes the time that it has for nearly all of a run.
    pub(super) fn until_recorded(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let runs = RUNS_UNTIL_RECORDED.max(RecordedCalls::CALLS_UNTIL_RECORDED);
        let needed = if self.device.is_cuda() { runs } else { 0 };
        (self.plan.warmup..needed).try_for_each(|_| run())
    }

    /// Median seconds of each of these, run in turns since the speed of a machine moves: each follows one of its own
    /// that is not counted, so that it begins with what such a run leaves in a ring.
    fn in_turns<const N: usize>(&self, mut each: [&mut dyn FnMut() -> Result<()>; N]) -> Result<[f64; N]> {
        let mut seconds = [const { Vec::new() }; N];
        for _ in 0..self.plan.runs {
            for (run, seconds) in each.iter_mut().zip(&mut seconds) {
                run()?;
                self.device.synchronize()?;
                let start = Instant::now();
                run()?;
                self.device.synchronize()?;
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(seconds.map(|seconds| Summary::of(&seconds).median))
    }

    fn vae(&mut self) -> Result<StageReport> {
        let model = self.model;
        let dtype = supported_dtype(model.decoder_dtype(self.dtype), &self.placement(self.dtype));
        let decoder = Network::of(model);
        let weights = Weights { segments: decoder.segments(), dtype, flop: &[] };
        let loaded = self.load("the VAE's decoder", &[weights])?;
        let (h, w) = model.latent_size();
        let latents = self.normal(1, (model.vae.latent_channels, h, w))?;
        let flop = decoder_flop(&decoder, (h, w))?;
        let backend = self.backend;
        self.time(BenchStage::Vae, &loaded, flop, &mut || {
            match backend {
                Some(backend) => decoder.decode_on(backend, &latents, dtype, Tiling::Whole)?,
                None => decoder.decode(&latents, dtype, Tiling::Whole)?,
            };
            Ok(())
        })
    }

    fn text(&mut self) -> Result<StageReport> {
        let stage = self.text_stage()?;
        let networks = stage.networks().into_iter();
        let weights: Vec<_> =
            networks.map(|network| Weights { segments: network.segments, dtype: self.dtype, flop: &[] }).collect();
        let loaded = self.load("the text encoders", &weights)?;
        let mut on = InMemory::new(&self.placement(self.dtype), loaded.is_resident());
        let flop = text_flop(stage.as_ref(), stage.least())?;
        let mut run = || encode(stage.as_ref(), 0, &mut on).map(drop);
        self.until_recorded(&mut run)?;
        self.time(BenchStage::Text, &loaded, flop, &mut run)
    }

    /// The text encoders, without weights.
    pub(super) fn text_stage(&self) -> Result<Box<dyn TextStage>> {
        Ok(self.model.text_stage()?)
    }

    pub(super) fn placement(&self, dtype: DType) -> Placement {
        let placement = Placement::new(self.device.clone(), dtype).with_matrices(self.matrices);
        placement.with_backend(self.backend.cloned())
    }

    /// Makes the weights of `networks` in their types, one after another, and streams them if requested.
    pub(super) fn load(&self, what: &'static str, networks: &[Weights<'_>]) -> Result<Loaded> {
        let start = Instant::now();
        let mut streams = Vec::new();
        let needed =
            networks.iter().map(|network| network.segments.bytes(self.placement(network.dtype).slab()) as u64).sum();
        if self.plan.stream.is_none() {
            check_memory(what, needed, self.device)?;
        }
        let _weights = Category::Weights.scope();
        for &Weights { segments, dtype, flop } in networks {
            let placement = self.placement(dtype);
            match self.plan.stream {
                Some(plan) => streams.push(Streamed::start(plan, segments, &placement, self.on, flop)?),
                None => {
                    let source: Arc<dyn ParamSource> = Arc::new(RandomSource::new(segments, SEED));
                    load_open(segments, &source, &placement)?;
                }
            }
        }
        self.device.synchronize()?;
        let parameters = networks.iter().map(|network| network.segments.parameters()).sum();
        Ok(Loaded { parameters, seconds: start.elapsed().as_secs_f64(), streams })
    }

    /// Runs `run` until it is warm, then measures it.
    pub(super) fn time(
        &mut self,
        stage: BenchStage,
        loaded: &Loaded,
        flop: f64,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<StageReport> {
        let (mut runs, mut faults, mut pool_calls, mut card_calls) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for i in 0..self.plan.warmup + self.plan.runs {
            let (before, calls, start) = (SystemRequests::so_far(), DevicePool::calls().driver, Instant::now());
            run()?;
            self.device.synchronize()?; // a GPU still works when the call returns
            if i >= self.plan.warmup {
                runs.push(start.elapsed().as_secs_f64());
                let asked = SystemRequests::so_far().since(before);
                faults.push(asked.faults);
                pool_calls.push(asked.calls);
                card_calls.push(DevicePool::calls().driver - calls);
            }
            self.tell(stage, Some(i + 1))?;
        }
        let seconds = Summary::of(&runs);
        let seconds_per_picture = match stage {
            BenchStage::Step
            | BenchStage::ControlStep
            | BenchStage::IpAdapterStep
            | BenchStage::DeepCacheSteps
            | BenchStage::BlockCacheStep
            | BenchStage::Call => Some(seconds.median / self.plan.batch as f64),
            BenchStage::Vae | BenchStage::VaeEncode | BenchStage::Upscale => Some(seconds.median),
            BenchStage::Text => None,
        };
        Ok(StageReport {
            stage,
            parameters: loaded.parameters,
            load_seconds: loaded.seconds,
            gflop_per_second: flop / seconds.median * 1e-9,
            seconds,
            seconds_per_picture,
            flop,
            runs,
            faults,
            pool_calls,
            card_calls,
            card: self.pool.map(DevicePool::memory).transpose()?.map(CardMemory::from),
            stream: None,
        })
    }

    fn tell(&mut self, stage: BenchStage, done: Option<usize>) -> Result<()> {
        let total = self.plan.warmup + self.plan.runs;
        Ok(kiln_engine::proceed((self.watch)(BenchEvent { model: &self.model.name, stage, done, total }))?)
    }

    /// The inputs of `denoiser`, the model's own, for `n` rows: the shortest text each, its pooled text, and what depends on the
    /// size of the images.
    pub(super) fn inputs(&self, denoiser: &dyn Denoiser, n: usize) -> Result<Inputs> {
        let TextWidths { context, pooled } = self.model.denoiser.text();
        let tokens = self.text_stage()?.least();
        let context = self.normal(n, (1, tokens, context.unwrap_or(1)))?.squeeze(1)?;
        let pooled = self.normal(n, (1, 1, pooled.unwrap_or(1)))?.flatten_from(1)?;
        let inputs = shared_conditions(self.model, self.device)?.inputs(context, n / 2, || Ok(pooled))?;
        let (height, width) = self.model.latent_size();
        let inputs = match self.model.latents().extra_channels {
            0 => inputs,
            extra => inputs.with(EXTRA_CHANNELS, self.normal(n, (extra, height, width))?),
        };
        Ok(denoiser.for_size(inputs, [height, width])?)
    }

    /// Normal values `(n, ..)`, drawn as an image's noise is.
    pub(super) fn normal(&self, n: usize, shape: (usize, usize, usize)) -> Result<Tensor> {
        Ok(ImageNoise::new(SEED, n).latents(shape)?.to_device(self.device)?)
    }
}

/// The conditions of all images of a model besides their texts: its own size, and for a distilled network the usual
/// strength of guidance.
pub(super) fn shared_conditions(model: &Architecture, device: &Device) -> Result<SharedConditions> {
    let strength = model.denoiser.takes_guidance().then(|| match model.unet() {
        Some(_) => kiln_unet::guidance_input(kiln_models::LCM_GUIDANCE),
        None => DISTILLED_GUIDANCE,
    });
    let time_ids = match model.unet().filter(|unet| unet.added_embedding.is_some()) {
        None => TimeIds::None,
        Some(unet) if unet.takes_score() => TimeIds::Scores { conditional: 6.0, unconditional: 2.5 },
        Some(_) => TimeIds::Sizes,
    };
    let sizes = [SizeConditions::of_image((model.width, model.height)); 2];
    Ok(SharedConditions::new(time_ids, sizes, strength, device)?.with_pooled(model.denoiser.text().pooled.is_some()))
}

/// The shortest text with the number `text`, encoded as a run does, with all weights in memory.
pub(super) fn encode(stage: &dyn TextStage, text: usize, on: &mut InMemory) -> Result<TextTensors> {
    let options = stage.effective(TextOptions::default());
    let texts = [(PromptText::plain("", options), Arc::new(stage.sample(text)))];
    let encoded = stage.encode(&texts, on)?;
    Ok(encoded.into_iter().next().unwrap_or_default())
}

/// Runs a stage whose weights are loaded or streamed on the calling thread.
pub(super) struct InMemory {
    device: TextDevice,
    /// The work of each network that a GPU has recorded; `None` for streamed weights.
    recorded: Option<Vec<RecordedCalls>>,
}

impl InMemory {
    /// For weights with this placement, which stay where they are if they are `resident`.
    pub(super) fn new(placement: &Placement, resident: bool) -> Self {
        Self { device: TextDevice::of(placement), recorded: resident.then(Vec::new) }
    }
}

impl Runs for InMemory {
    fn enter(&mut self, network: usize) -> kiln_network::text::Result<TextDevice> {
        let Some(recorded) = &mut self.recorded else { return Ok(self.device.clone()) };
        recorded.resize_with(recorded.len().max(network + 1), RecordedCalls::default);
        Ok(self.device.clone().recording(recorded[network].clone()))
    }

    fn proceed(&mut self, _text: usize, _texts: usize) -> kiln_network::text::Result<()> {
        Ok(())
    }

    fn run(&mut self, _network: usize, work: &mut (dyn FnMut() + Send)) {
        work();
    }

    fn leave(&mut self, _network: usize) {}
}

/// Refuses weights that the host's memory does not hold: the system would end the process without a word.
fn check_memory(what: &'static str, needed: u64, device: &Device) -> Result<()> {
    match SystemMemory::now() {
        Some(memory) if device.is_cpu() && needed > memory.available => {
            let (what, available) = (format!("loading {what}"), memory.available);
            Err(Error::Memory { what, needed, available })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let message = check_memory("the denoiser", 1 << 60, &Device::Cpu).unwrap_err().to_string();
        assert!(message.starts_with("loading the denoiser needs 1073741824.0 GiB of memory"), "{message}");
        assert!(message.contains("`dtype` bf16"), "{message}");
    }
}
