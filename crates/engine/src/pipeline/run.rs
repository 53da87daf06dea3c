//! One batch through its stages: encode, encode-image, denoise, decode.

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kiln_media::Gray8Image;
use kiln_ops::trace::Trace;
use kiln_request::{DenoiserSpan, Init, InitImage, Job};
use kiln_scheduler::NoiseSource;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generated_image::GeneratedImage;
use crate::host_memory::{self, SystemRequests};
use crate::origin::Origin;
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::conditioning::Conditions;
use crate::pipeline::decoder::UpcastRetry;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::group::Group;
use crate::pipeline::guidance::Guidance;
use crate::pipeline::image_encoder::ImageEncoder;
use crate::pipeline::network_parts::NetworkParts;
use crate::pipeline::preview::PreviewPace;
use crate::pipeline::running::RunningBatch;
use crate::pipeline::second_pass::{Enlarged, second_pass};
use crate::pipeline::start::{Start, is_from_noise, mask_channels};
use crate::pipeline::step::count_not_finite;
use crate::pipeline::text_cache::CacheCounts;
use crate::pipeline::text_plan::{BatchTexts, Shape, TextPlan};
use crate::pipeline::throttle::StepThrottle;
use crate::pipeline::trace::StepTrace;
use crate::pipeline::turns::Turn;
use crate::plan::Workload;

/// The latents of one image, whose steps are done.
#[derive(Debug, Clone)]
pub struct Latents {
    /// `(1, c, h, w)` in f32, in the host's memory.
    pub latents: Tensor,
    /// The image's number in its job, from 0.
    pub index: usize,
    /// The image's seed.
    pub seed: u64,
    /// How much of the image is seen instead of its input, in the size of the latents; `None` where the mask alone says
    /// that.
    pub(crate) visible: Option<Gray8Image>,
}

/// The pixels of one image.
pub struct DecodedImage {
    /// `(1, 3, h, w)` of about -1 to 1 in f32, in the host's memory.
    pub image: Tensor,
    /// What was decoded, as [`Latents`] has it.
    pub latents: Tensor,
    /// How long decoding took.
    pub decode: Duration,
    /// As [`Latents`] has it.
    pub(crate) visible: Option<Gray8Image>,
}

/// What the steps of a batch give.
pub(crate) struct Denoised {
    /// `(n, c, h, w)` in f32, in the host's memory.
    pub(super) latents: Tensor,
    /// See [`Latents::visible`].
    visible: Option<Vec<Gray8Image>>,
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
    /// The same after so many more evaluations.
    pub(super) fn after(self, evaluations: usize) -> Self {
        Self { before: self.before + evaluations, ..self }
    }

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
    /// Whether it may run with less of the model in memory than is planned.
    pub(crate) may_shrink: bool,
}

impl BatchRequest {
    /// What a batch is run with whose memory is planned for `work`.
    pub(crate) fn new(texts: BatchTexts, work: Workload, progress: Progress) -> Self {
        Self { texts, work, progress, may_shrink: true }
    }

    /// What a batch of an image set is run with. `shape` is that of its images' texts; memory is planned for `n` images, so
    /// that a last batch that is smaller is not planned again.
    ///
    /// # Errors
    /// Those of the text encoders' tokenizers and of the schedule.
    pub fn of_set(engine: &mut Engine, batch: &Batch<'_>, shape: Shape, n: usize) -> Result<Self> {
        let texts = engine.plan_texts(batch)?;
        let work = shape.work(batch.job(), n, texts.texts());
        let total = batch.job().evaluations_of_passes(&engine.model)?;
        Ok(Self::new(texts, work, Progress { before: 0, total }))
    }

    /// The same batch, which fails where memory is out before it is decoded, instead of running again with less of the model in
    /// memory: a smaller batch is the better way then, and the batches after it find the model as it was planned.
    pub fn or_fail(self) -> Self {
        Self { may_shrink: false, ..self }
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
        GeneratedImage::new(job, origin, index, self)
    }
}

impl Latents {
    /// Those of the image at `place` of a batch.
    pub(crate) fn of(batch: &Batch<'_>, all: &Denoised, place: usize) -> Result<Self> {
        let (job, index) = batch.image(place);
        let visible = all.visible.as_ref().and_then(|each| each.get(place)).cloned();
        Ok(Self { latents: all.latents.narrow(0, place, 1)?, index, seed: job.seed_of(index), visible })
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
    let BatchRequest { texts, work, progress, may_shrink } = request;
    let before = engine.timings;
    engine.prepare(work)?;
    engine.memory_manager.set_may_shrink(may_shrink);
    let denoised = engine.attempt(Stage::Denoise, &mut |event| sink.event(event), |engine, tell| {
        let group = start(engine, batch, &texts, None, tell)?;
        denoise(engine, batch, group, progress, tell)
    });
    let denoised =
        denoised.and_then(|first| second_pass(engine, batch, first, progress, &mut |event| sink.event(event)));
    engine.memory_manager.set_may_shrink(true);
    let denoised = denoised?;
    let times =
        BatchTimes { encode: engine.timings.encode - before.encode, denoise: engine.timings.denoise - before.denoise };
    let mut decodes = false;
    for place in 0..batch.len() {
        let latents = Latents::of(batch, &denoised, place)?;
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
/// `enlarged` are the results of the pass before where this is the second one.
pub(crate) fn start(
    engine: &mut Engine,
    batch: &Batch<'_>,
    texts: &BatchTexts,
    enlarged: Option<&Enlarged>,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Group> {
    tell(Stage::Encode.begin())?;
    let job = batch.job();
    let conditions = encode(engine, batch, texts.base.clone(), false, tell)?;
    let is_guided = conditions.is_guided();
    let refined = match texts.refiner.clone() {
        Some(texts) => Some(encode(engine, batch, texts, true, tell)?),
        None => None,
    };
    let f = engine.model.vae_config().downscale();
    let shape = (engine.model.vae_config().latent_channels, job.height / f, job.width / f);
    let mut noise = batch.noise(f);
    if batch.images().any(|(job, _)| job.lacks_pixels()) {
        let (found, expected) = ("an image without pixels".into(), "`Job::with_pixels` before the run".into());
        return Err(kiln_request::Error::Value { name: "init", found, expected }.into());
    }
    let (inits, takes_mask) = (batch.images().map(|(job, _)| &job.init).collect::<Vec<&Init>>(), job.takes_mask);
    // A network with channels for the masked image sees nothing else of an image that begins with noise.
    let is_seen = !(takes_mask && is_from_noise(&inits, &job.image));
    let images: Vec<&InitImage> = inits.iter().filter_map(|init| init.image()).filter(|_| is_seen).collect();
    let image = match enlarged {
        Some(enlarged) => Some(enlarged.latents(engine, job, &mut noise, tell)?),
        None => encode_images(engine, &images, &mut noise, tell)?,
    };
    let drawn = noise.latents(shape)?;
    let extra = if takes_mask {
        let (mask, images) = mask_channels(&inits, (shape.1, shape.2), f, &job.image)?;
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
    let prompts = engine.encode_prompts(batch, is_guided, tell)?;
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
    let group = Group::of_turns(schedule, start, Box::new(noise), turns, job.steps)?
        .with_controls(controls)
        .with_prompts(prompts)
        .with_network(NetworkParts::new(job));
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
    if !for_refiner {
        engine.text().fetch(&texts);
    }
    if !knows(engine) {
        engine.make_room_for(Stage::Encode);
    }
    let kept = engine.memory_manager.keeps_text_encoders();
    let keep = engine.memory_manager.keep(Stage::Encode)?;
    let mut proceed = |done, total| tell(Event::Text { done, total });
    let conditions = match engine.refiner.as_mut().filter(|_| for_refiner) {
        Some(refiner) => refiner.text.conditions(batch.job(), texts, &keep, kept, &mut proceed)?,
        None => {
            let conditions = engine.text().conditions(batch.job(), texts, &keep, kept, &mut proceed)?;
            let CacheCounts { encoded, known, shared } = engine.text().counts();
            (engine.timings.texts_encoded, engine.timings.texts_known) = (encoded, known);
            engine.timings.texts_shared = shared;
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
    let one = &mut |i: usize| Ok(images[i].clone());
    (!images.is_empty()).then(|| encode_each(engine, images.len(), one, noise, tell)).transpose()
}

/// The same for `n` images, each of which `image` makes when it is encoded.
pub(super) fn encode_each(
    engine: &mut Engine,
    n: usize,
    image: &mut dyn FnMut(usize) -> Result<InitImage>,
    noise: &mut BatchNoise,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Tensor> {
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
        engine.image_encoder()?.encode(n, image, &keep, tiling, draw, &mut upcast)
    })?;
    engine.after("encoded images");
    engine.timings.encode += begin.elapsed();
    Ok(latents)
}

/// The stage denoise: a group's way down its schedule, as the only group of a running batch.
pub(super) fn denoise(
    engine: &mut Engine,
    batch: &Batch<'_>,
    group: Group,
    progress: Progress,
    tell: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<Denoised> {
    tell(Stage::Denoise.begin())?;
    let begin = Instant::now();
    let calls = group.evaluations();
    let mut running = RunningBatch::new();
    let id = running.join(group, None);
    let mut warm = SystemRequests::default();
    let device = engine.device.clone();
    let (mut throttle, mut told) = (StepThrottle::default(), 0);
    let trace_at = engine.trace.as_ref().map(|_| 1.min(calls.saturating_sub(1)));
    let mut traced = None;
    let mut acting = running.acting();
    let mut pace = engine.preview_every.map(PreviewPace::new);
    for call in 0..calls {
        let previewed = pace.as_ref().is_some_and(|pace| pace.wants(call + 1, calls));
        running.keep_prediction(id, previewed);
        let mut trace = (trace_at == Some(call)).then(Trace::default);
        let now = running.acting();
        if now != acting {
            acting = now;
            engine.log_of_stream(0, call)?;
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
        told = throttle.started(&device, call + 1)?;
        if told > 0 {
            tell(progress.event(told))?;
        }
        if let Some(pace) = pace.as_mut().filter(|_| previewed) {
            let begin = Instant::now();
            for (place, image) in engine.preview(&running, id)?.into_iter().enumerate() {
                let (_, index) = batch.image(place);
                tell(Event::Preview { index, step: progress.before + call + 1, image })?;
            }
            pace.done(begin);
        }
    }
    engine.log_of_stream(acting.first().copied().unwrap_or_default(), calls)?;
    host_memory::log_steps(calls.saturating_sub(1), SystemRequests::so_far().since(warm));
    let denoised = finished(&running.finish(id)?)?;
    if told < calls {
        tell(progress.event(calls))?; // the values were read, so that the GPU is done
    }
    engine.timings.denoise += begin.elapsed();
    engine.timings.steps += calls;
    if let Some(pace) = &pace {
        pace.log(begin.elapsed());
    }
    engine.after("denoised");
    if let (Some(file), Some(step), Some(trace)) = (engine.trace.take(), trace_at, traced) {
        let job = batch.job();
        let title = format!("{}: step, {} of {}x{}", engine.model.name(), batch.len(), job.width, job.height);
        file.write([&StepTrace::new(title, &engine.device, engine.dtype, step, trace)])?;
    }
    Ok(denoised)
}

/// What the steps of a group gave, in the host's memory, checked.
///
/// # Errors
/// [`Error::NotANumber`] where values are not finite.
pub(crate) fn finished(group: &Group) -> Result<Denoised> {
    let latents = group.latents().to_device(&Device::Cpu)?;
    match count_not_finite(&latents)? {
        0 => Ok(Denoised { latents, visible: group.visible()? }),
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
    Ok(DecodedImage { image, latents: latents.latents.clone(), decode, visible: latents.visible.clone() })
}

impl Engine {
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
}
