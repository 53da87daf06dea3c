//! One batch through its stages: encode, encode-image, denoise, decode.

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kiln_ops::trace::Trace;
use kiln_request::{DenoiserSpan, Init, InitImage, Job};
use kiln_scheduler::NoiseSource;
use kiln_weights::StreamReport;

use crate::component::LoadedComponent;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generated_image::GeneratedImage;
use crate::host_memory::{self, SystemRequests};
use crate::origin::Origin;
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::conditioning::Conditions;
use crate::pipeline::controlled::Controlled;
use crate::pipeline::decoder::UpcastRetry;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::guidance::Guidance;
use crate::pipeline::image_encoder::ImageEncoder;
use crate::pipeline::running::{Group, RunningBatch};
use crate::pipeline::start::{Start, is_from_noise, mask_channels};
use crate::pipeline::step::count_not_finite;
use crate::pipeline::text_cache::CacheCounts;
use crate::pipeline::text_plan::{BatchTexts, Shape, TextPlan};
use crate::pipeline::throttle::StepThrottle;
use crate::pipeline::trace::StepTrace;
use crate::pipeline::turns::Turn;
use crate::plan::Workload;

/// Steps before a refiner takes over at which its weights begin to be read.
const READ_AHEAD: usize = 4;

/// The latents of one image, whose steps are done.
#[derive(Debug, Clone)]
pub struct Latents {
    /// `(1, c, h, w)` in f32, in the host's memory.
    pub latents: Tensor,
    /// The image's number in its job, from 0.
    pub index: usize,
    /// The image's seed.
    pub seed: u64,
}

/// The pixels of one image.
pub struct DecodedImage {
    /// `(1, 3, h, w)` of about -1 to 1 in f32, in the host's memory.
    pub image: Tensor,
    /// What was decoded, as [`Latents`] has it.
    pub latents: Tensor,
    /// How long decoding took.
    pub decode: Duration,
}

/// How long a batch took before it was decoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchTimes {
    /// Encoding texts and images.
    pub encode: Duration,
    /// All evaluations of the denoiser.
    pub denoise: Duration,
}

/// Where a batch stands in its run: evaluations of batches before it, and of all batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) before: usize,
    pub(crate) total: usize,
}

impl Progress {
    fn event(self, done: usize) -> Event {
        Event::Step { done: self.before + done, total: self.total }
    }
}

/// What a batch is run with, besides its jobs.
pub struct BatchRequest {
    /// Its texts.
    pub(crate) texts: BatchTexts,
    /// The work that memory is planned for.
    pub(crate) work: Workload,
    pub(crate) progress: Progress,
}

impl BatchRequest {
    /// What a batch of an image set is run with. `shape` is that of its images' texts; memory is planned for `n` images, so
    /// that a last batch that is smaller is not planned again.
    ///
    /// # Errors
    /// Those of the text encoders' tokenizers and of the schedule.
    pub fn of_set(engine: &mut Engine, batch: &Batch<'_>, shape: Shape, n: usize) -> Result<Self> {
        let texts = engine.plan_texts(batch)?;
        let work = shape.work(batch.job(), n, texts.texts());
        let total = batch.job().evaluations(&engine.model)?;
        Ok(Self { texts, work, progress: Progress { before: 0, total } })
    }
}

/// Receives the results of a batch as they are computed. An error of a method stops the run, and is its error.
pub trait BatchSink {
    /// An event of the run.
    ///
    /// # Errors
    /// [`Error::Interrupted`] to stop the run.
    fn event(&mut self, event: Event) -> Result<()>;

    /// The latents of image `place` of the batch. The engine decodes what is returned; `None` means that the caller decodes
    /// the latents itself ([`OverlappedNetworks::decode`](crate::pipeline::OverlappedNetworks::decode)).
    ///
    /// # Errors
    /// Those of the implementation.
    fn latents(
        &mut self,
        engine: &Engine,
        place: usize,
        latents: Latents,
        times: BatchTimes,
    ) -> Result<Option<Latents>>;

    /// The pixels of image `place` of the batch.
    ///
    /// # Errors
    /// Those of the implementation.
    fn image(&mut self, engine: &mut Engine, place: usize, image: DecodedImage) -> Result<()>;
}

impl DecodedImage {
    /// The image with its settings: number `index` of `job`, made with `origin`.
    ///
    /// # Errors
    /// [`Error::Models`] where the decoder gives other channels than red, green and blue.
    pub fn generated(self, job: &Job, origin: &Origin, index: usize) -> Result<GeneratedImage> {
        GeneratedImage::new(job, origin, index, &self.image, self.latents)
    }
}

impl Latents {
    /// Those of the image at `place` of a batch with the latents `all` `(n, c, h, w)`.
    pub(crate) fn of(batch: &Batch<'_>, all: &Tensor, place: usize) -> Result<Self> {
        let (job, index) = batch.image(place);
        Ok(Self { latents: all.narrow(0, place, 1)?, index, seed: job.seed_of(index) })
    }

    /// Says that the image is decoded again.
    pub fn again(&self, UpcastRetry { from, to }: UpcastRetry) -> Event {
        Event::DecodeAgain { index: self.index, seed: self.seed, from: from.as_str(), to: to.as_str() }
    }
}

/// Runs all stages of one batch, and hands every image to `sink`: the one way from a batch to its images, for single calls
/// and image sets.
///
/// # Errors
/// As [`Engine::txt2img`], and those of `sink`.
pub fn run_batch(
    engine: &mut Engine,
    batch: &Batch<'_>,
    request: BatchRequest,
    sink: &mut dyn BatchSink,
) -> Result<()> {
    let BatchRequest { texts, work, progress } = request;
    let before = engine.timings;
    engine.prepare(work)?;
    let latents = engine.attempt(Stage::Denoise, &mut |event| sink.event(event), |engine, tell| {
        let group = start(engine, batch, &texts, tell)?;
        denoise(engine, batch, group, progress, tell)
    })?;
    let times =
        BatchTimes { encode: engine.timings.encode - before.encode, denoise: engine.timings.denoise - before.denoise };
    let mut decodes = false;
    for place in 0..batch.len() {
        let latents = Latents::of(batch, &latents, place)?;
        let Some(latents) = sink.latents(engine, place, latents, times)? else { continue };
        if !std::mem::replace(&mut decodes, true) {
            begin_decoding(engine);
        }
        let image = decode(engine, &latents, &mut |event| sink.event(event))?;
        sink.image(engine, place, image)?;
    }
    Ok(())
}

/// The first stages of a batch: its texts, and its initial images where there are any, up to what the denoiser starts with.
pub(crate) fn start(
    engine: &mut Engine,
    batch: &Batch<'_>,
    texts: &BatchTexts,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Group> {
    tell(Stage::Encode.begin())?;
    let job = batch.job();
    let conditions = encode(engine, batch, texts.base.clone(), false, tell)?;
    let refined = match texts.refiner.clone() {
        Some(texts) => Some(encode(engine, batch, texts, true, tell)?),
        None => None,
    };
    let f = engine.model.vae_config().downscale();
    let shape = (engine.model.vae_config().latent_channels, job.height / f, job.width / f);
    let mut noise = batch.noise(f);
    let (inits, takes_mask) = (batch.images().map(|(job, _)| &job.init).collect::<Vec<&Init>>(), job.takes_mask);
    // A network with channels for the masked image sees nothing else of an image that begins with noise.
    let is_seen = !(takes_mask && is_from_noise(&inits, &job.image));
    let images: Vec<&InitImage> = inits.iter().filter_map(|init| init.image()).filter(|_| is_seen).collect();
    let image = encode_images(engine, &images, &mut noise, tell)?;
    let drawn = noise.latents(shape)?;
    let extra = if takes_mask {
        let latents = job.image.init_noise.unwrap_or_default();
        let (mask, images) = mask_channels(&inits, (shape.1, shape.2), f, latents)?;
        let masked = encode_images(engine, &images.iter().collect::<Vec<_>>(), &mut noise, tell)?;
        masked.map(|masked| Tensor::cat(&[mask, masked], 1)).transpose()?
    } else {
        None
    };
    let begin = Instant::now();
    let schedule = job.schedule(&engine.model)?;
    let (spans, evaluations) = (job.spans(&engine.model)?, job.evaluations(&engine.model)?);
    // Of each model its conditions.
    let turn = |(span, conditions): (&DenoiserSpan, Conditions)| {
        let guidance = Guidance::new(job, &conditions, evaluations);
        let DenoiserSpan { denoiser, evaluations, ref schedule } = *span;
        Turn { denoiser, evaluations, schedule: schedule.clone(), conditions, guidance }
    };
    let turns = spans.iter().zip(std::iter::once(conditions).chain(refined)).map(turn).collect();
    if !job.controls.is_empty() {
        engine.make_room_for(Stage::Denoise);
    }
    let controls = engine.embed_controls(batch)?;
    engine.enter_denoiser(0)?;
    engine.timings.encode += begin.elapsed();

    let begin = Instant::now();
    let start = Start::new(
        &inits,
        image,
        (&mut noise, drawn),
        (&schedule, &job.image),
        (shape, f),
        (&engine.device, takes_mask),
    )?;
    let extra = extra.map(|extra| extra.to_device(&engine.device)).transpose()?;
    let start = Start { extra, ..start };
    let group = Group::of_turns(schedule, start, Box::new(noise), turns, job.steps)?.with_controls(controls);
    engine.timings.denoise += begin.elapsed();
    Ok(group)
}

/// The stage encode: a batch's texts to its conditions, for the engine's own model or for the refiner.
fn encode(
    engine: &mut Engine,
    batch: &Batch<'_>,
    texts: TextPlan,
    for_refiner: bool,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Conditions> {
    let begin = Instant::now();
    let knows = |engine: &Engine| match engine.refiner.as_ref().filter(|_| for_refiner) {
        Some(refiner) => refiner.text.knows(&texts),
        None => engine.text().knows(&texts),
    };
    if !knows(engine) {
        engine.make_room_for(Stage::Encode);
    }
    let kept = engine.memory_manager.mode().is_fully_resident() && !engine.device.is_cpu();
    let keep = engine.memory_manager.keep(Stage::Encode)?;
    let mut proceed = |done, total| tell(Event::Text { done, total });
    let conditions = match engine.refiner.as_mut().filter(|_| for_refiner) {
        Some(refiner) => refiner.text.conditions(batch.job(), texts, &keep, kept, &mut proceed)?,
        None => {
            let conditions = engine.text().conditions(batch.job(), texts, &keep, kept, &mut proceed)?;
            let CacheCounts { encoded, known } = engine.text().counts();
            (engine.timings.texts_encoded, engine.timings.texts_known) = (encoded, known);
            conditions
        }
    };
    engine.after("encoded");
    engine.timings.encode += begin.elapsed();
    Ok(conditions)
}

/// The stage encode-image: the latents of images, `(n, c, h, w)` in f32 in the host's memory. `None` where there are none.
fn encode_images(
    engine: &mut Engine,
    images: &[&InitImage],
    noise: &mut BatchNoise,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Option<Tensor>> {
    if images.is_empty() {
        return Ok(None);
    }
    tell(Stage::EncodeImage.begin())?;
    let begin = Instant::now();
    host_memory::trim(Stage::EncodeImage.id());
    let before = noise.clone();
    let latents = engine.attempt(Stage::EncodeImage, tell, |engine, _| {
        engine.make_room_for(Stage::EncodeImage);
        let (keep, tiling) =
            (engine.memory_manager.keep(Stage::EncodeImage)?, engine.memory_manager.plan().encode_tiling);
        *noise = before.clone();
        let draw = |like: &Tensor| Ok(noise.sample(like)?);
        let mut upcast = |UpcastRetry { from, to }| {
            tracing::warn!(
                "an initial image overflowed {} in the VAE; it is encoded in {}",
                from.as_str(),
                to.as_str()
            );
            Ok(())
        };
        engine.image_encoder()?.encode(images, &keep, tiling, draw, &mut upcast)
    })?;
    engine.after("encoded images");
    engine.timings.encode += begin.elapsed();
    Ok(Some(latents))
}

/// The stage denoise: a group's way down its schedule, as the only group of a running batch. Gives its latents `(n, c, h, w)`
/// in f32 in the host's memory.
fn denoise(
    engine: &mut Engine,
    batch: &Batch<'_>,
    group: Group,
    progress: Progress,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Tensor> {
    tell(Stage::Denoise.begin())?;
    let begin = Instant::now();
    let calls = group.evaluations();
    let mut running = RunningBatch::new();
    let id = running.join(group, None);
    let mut warm = SystemRequests::default();
    let device = engine.device.clone();
    let (mut throttle, mut told) = (StepThrottle::new(&device), 0);
    let trace_at = engine.trace.as_ref().map(|_| 1.min(calls.saturating_sub(1)));
    let mut traced = None;
    let mut acting = running.acting();
    for call in 0..calls {
        let mut trace = (trace_at == Some(call)).then(Trace::default);
        let now = running.acting();
        if now != acting {
            acting = now;
            log_of_stream(engine, 0, call)?;
            tell(Stage::Refine.begin())?;
        }
        if acting.contains(&0) {
            engine.advance(&mut running, trace.as_mut())?;
        } else {
            // The steps that are done are not done again.
            engine.attempt(Stage::Refine, tell, |engine, _| engine.advance(&mut running, trace.as_mut()))?;
        }
        engine.read_ahead(&running);
        traced = trace.or(traced);
        if call == 0 {
            warm = SystemRequests::so_far();
        }
        told = throttle.started(call + 1)?;
        if told > 0 {
            tell(progress.event(told))?;
        }
    }
    log_of_stream(engine, acting.first().copied().unwrap_or_default(), calls)?;
    host_memory::log_steps(calls.saturating_sub(1), SystemRequests::so_far().since(warm));
    let latents = finished(&running.finish(id)?)?;
    if told < calls {
        tell(progress.event(calls))?; // the values were read, so that the GPU is done
    }
    engine.timings.denoise += begin.elapsed();
    engine.timings.steps += calls;
    engine.after("denoised");
    if let (Some(file), Some(step), Some(trace)) = (engine.trace.take(), trace_at, traced) {
        let job = batch.job();
        let title = format!("{}: step, {} of {}x{}", engine.model.name(), batch.len(), job.width, job.height);
        file.write([&StepTrace::new(title, &engine.device, engine.dtype, step, trace)])?;
    }
    Ok(latents)
}

/// The latents of a group, in the host's memory, checked.
///
/// # Errors
/// [`Error::NotANumber`] where values are not finite.
pub(crate) fn finished(group: &Group) -> Result<Tensor> {
    let latents = group.latents().to_device(&Device::Cpu)?;
    match count_not_finite(&latents)? {
        0 => Ok(latents),
        count => {
            let remedy = "try `dtype` f32, or a model whose weights are not damaged";
            Err(Error::NotANumber { stage: "the denoiser", count, remedy })
        }
    }
}

/// Frees memory before the latents of a batch are decoded.
pub fn begin_decoding(engine: &mut Engine) {
    host_memory::trim(Stage::Decode.id());
    engine.make_room_for(Stage::Decode);
}

/// The stage decode: the latents of one image to its pixels. `tell` gets the stage, a change of the mode, and a wider type.
///
/// # Errors
/// Those of the decoder and of `tell`.
pub fn decode(
    engine: &mut Engine,
    latents: &Latents,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<DecodedImage> {
    tell(Stage::Decode.begin())?;
    let start = Instant::now();
    let image = engine.attempt(Stage::Decode, tell, |engine, tell| {
        let (keep, tiling) = (engine.memory_manager.keep(Stage::Decode)?, engine.memory_manager.plan().tiling);
        let mut decoder = engine.decoder();
        let upcast = &mut |news| tell(latents.again(news));
        engine.recorded.lend(|| decoder.decode(&latents.latents, &keep, tiling, upcast))
    })?;
    let decode = start.elapsed();
    engine.timings.decode += decode;
    engine.after("decoded");
    Ok(DecodedImage { image, latents: latents.latents.clone(), decode })
}

impl Engine {
    /// One evaluation of all groups of a running batch.
    pub(crate) fn advance(&mut self, running: &mut RunningBatch, mut trace: Option<&mut Trace>) -> Result<()> {
        for number in running.acting() {
            self.enter_denoiser(number)?;
            let (component, unet, nets, recorded) = match self.refiner.as_mut().filter(|_| number > 0) {
                Some(refiner) => (&refiner.component, &refiner.unet, Vec::new(), &mut refiner.recorded),
                None => (&self.unet_component, &self.unet, self.controls.nets(), &mut self.recorded),
            };
            let (dtype, trace) = (self.dtype, trace.as_deref_mut());
            let denoiser = Controlled::new(unet, nets);
            component.run(|| running.step_of(number, &denoiser, Some(recorded), dtype, trace))?;
        }
        Ok(())
    }

    /// Has the denoiser of this number ready to run: 0 is the model's own with its control networks, 1 that of its refiner.
    pub(crate) fn enter_denoiser(&mut self, number: usize) -> Result<()> {
        let refiner = self.refiner.as_ref().filter(|_| number > 0);
        let are_entered = || self.controls.components().all(LoadedComponent::is_entered);
        if refiner.map_or(&self.unet_component, |refiner| &refiner.component).is_entered()
            && (refiner.is_some() || are_entered())
        {
            return Ok(());
        }
        let stage = if refiner.is_some() { Stage::Refine } else { Stage::Denoise };
        self.make_room_for(stage);
        let keep = self.memory_manager.keep(stage)?;
        match self.refiner.as_mut().filter(|_| number > 0) {
            Some(refiner) => refiner.enter(&keep),
            None => {
                for (i, component) in self.controls.components().enumerate() {
                    component.enter(&self.memory_manager.keep_control(i)?)?;
                }
                self.unet_component.enter(&keep)
            }
        }
    }

    /// Begins to read the refiner's weights from the disk while the model before it makes its last steps.
    fn read_ahead(&mut self, running: &RunningBatch) {
        let is_next = matches!(running.until_next(), Some((1..=READ_AHEAD, Some(next))) if next > 0);
        if let Some(refiner) = self.refiner.as_mut().filter(|_| is_next) {
            refiner.read_ahead();
        }
    }

    /// The encoder of initial images, opened the first time.
    fn image_encoder(&mut self) -> Result<&mut ImageEncoder> {
        match self.image_encoder {
            Some(ref mut encoder) => Ok(encoder),
            None => {
                let encoder =
                    ImageEncoder::open(&self.model, self.setup.taesd.as_deref(), &self.placement, &self.options)?;
                Ok(self.image_encoder.insert(encoder))
            }
        }
    }

    /// Puts the LoRAs of `job` into the weights and opens its refiner and its control networks, in a smaller mode where memory is out.
    /// `tell` gets a change of the mode.
    ///
    /// # Errors
    /// Those of [`Engine::set_loras`] and [`Engine::set_controls`], and of `tell`.
    pub fn take_networks(&mut self, job: &Job, tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        self.set_refiner(job.refiner.as_ref())?;
        self.set_controls(&job.controls)?;
        self.attempt(Stage::Load, tell, |engine, _| engine.set_loras(&job.loras))
    }
}

/// Logs what streaming the denoiser of this number did in `steps` steps, if it streams.
fn log_of_stream(engine: &Engine, number: usize, steps: usize) -> Result<()> {
    let refiner = engine.refiner.as_ref().filter(|_| number > 0);
    if let Some(streamed) = refiner.map_or(&engine.unet_component, |refiner| &refiner.component).streamed()? {
        log_streamed(&streamed, steps);
    }
    Ok(())
}

/// Logs what streaming did in `steps` steps.
fn log_streamed(report: &StreamReport, steps: usize) {
    let per_step = 1.0 / steps.max(1) as f64;
    tracing::info!(
        steps,
        mib = report.bytes >> 20,
        mib_per_step = (report.bytes >> 20) as f64 * per_step,
        copy_seconds = report.copy_seconds,
        copy_seconds_per_step = report.copy_seconds * per_step,
        hidden_seconds = report.hidden_seconds(),
        stalls = report.stalls,
        stall_seconds = report.stall_seconds,
        stall_seconds_per_step = report.stall_seconds * per_step,
        resets = report.resets,
        "streamed"
    );
}
