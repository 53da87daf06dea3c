//! A loaded model, and the way of a prompt through it.

use std::ops::ControlFlow;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::{DevicePool, HostPool};
use kiln_ops::Target;
use kiln_scheduler::{Schedule, StepInfo, sample};
use kiln_unet::Unet;
use kiln_weights::{Network, Placement, StreamReport};

use crate::arrangement::{Arrangement, Ceiling};
use crate::conditioning::step_of;
use crate::decoder::{Decoder, Widened};
use crate::denoise::{GuidedUnet, RecordedStep, count_not_finite};
use crate::error::{Error, Result};
use crate::event::{Event, Stage, Timings};
use crate::guidance::Guide;
use crate::host_memory::{self, Asked};
use crate::lora::{AppliedLoras, Changed, LoraUse};
use crate::model_folder::ModelFolder;
use crate::pace::Pace;
use crate::part::{Copies, Keep, Part};
use crate::picture::Picture;
use crate::plan::{Planner, RunsOn};
use crate::prompt_cache::CacheCounts;
use crate::resolved::Job;
use crate::setup::{Place, Setup};
use crate::text::TextEncoders;
use crate::trace::{StepTrace, TraceFile};
use crate::words::{Embeddings, TEXT_ENCODERS};

/// A model that is loaded.
pub struct Engine {
    model: ModelFolder,
    device: Device,
    dtype: DType,
    text: TextEncoders,
    unet: Unet,
    unet_part: Part,
    loras: AppliedLoras,
    recorded: RecordedStep,
    decoder: Decoder,
    arrangement: Arrangement,
    /// Holds the processor's memory under the budget.
    _ceiling: Option<Ceiling>,
    timings: Timings,
    /// Where the next job's trace goes.
    trace: Option<TraceFile>,
    /// After all that runs there.
    _operators: Operators,
    /// Last, so that it is dropped after all that is on the card.
    pool: Option<DevicePool>,
}

/// What operators keep for a device; it goes with this.
struct Operators(Device);

impl Drop for Operators {
    fn drop(&mut self) {
        kiln_ops::device::close(&self.0);
    }
}

impl Engine {
    /// Loads a model. `watch` is told of the stage, and may stop the load between parts.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is not there, [`Error::Weights`] where weights are missing or do not fit.
    pub fn load(model: ModelFolder, setup: &Setup, watch: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Self> {
        Self::load_with(model, setup, &[], watch)
    }

    /// The same with LoRAs in the weights from the start: those of the first job, so that it reads nothing twice.
    ///
    /// # Errors
    /// Those of [`Self::load`], and those of [`Self::set_loras`].
    pub fn load_with(
        model: ModelFolder,
        setup: &Setup,
        loras: &[LoraUse],
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let Place { device, dtype, pool } = setup.resolve()?;
        let operators = Operators(device.clone());
        let on = RunsOn::new(Target::of(&device), dtype);
        let planner = Planner::new(&model, setup.taesd.as_deref())?;
        let arrangement = Arrangement::new(planner, &device, on, setup.memory.clone())?;
        let mode = arrangement.mode();
        tracing::info!(model = %model.path().display(), ?device, ?dtype, %mode, "loading");
        let ceiling = setup.memory.budget.filter(|_| device.is_cpu()).map(|budget| Ceiling::new(budget.0));
        let copies = Copies::new(&device, &setup.memory);
        let placement = Placement::new(device.clone(), dtype);
        // All files are opened and checked first, so that one that does not fit is refused at once.
        let decoder = Decoder::open(&model, setup.taesd.as_deref(), &placement, &copies)?;
        let unet = Unet::new(model.unet_config().clone());
        let unet_part = Part::new(unet.segments(), model.files().unet()?, &placement, &copies);
        unet_part.check()?;
        let embeddings = Embeddings::open(setup.embeddings_dir.as_deref())?;
        let text = TextEncoders::open(&model, &placement, &copies, embeddings, setup.cached_texts())?;
        let applied = AppliedLoras::new(&networks(&unet_part, &text), setup.lora_dir.as_deref());
        let (recorded, timings, trace) = (RecordedStep::default(), Timings::default(), None);
        let mut engine = Self {
            model,
            device,
            dtype,
            text,
            unet,
            unet_part,
            loras: applied,
            recorded,
            decoder,
            arrangement,
            _ceiling: ceiling,
            timings,
            trace,
            _operators: operators,
            pool,
        };
        engine.set_loras(loras)?;
        let mut tell = |event| if watch(event).is_break() { Err(Error::Interrupted) } else { Ok(()) };
        engine.attempt(Stage::Load, &mut tell, |engine, tell| engine.enter_all(tell))?;
        engine.timings.load = start.elapsed();
        Ok(engine)
    }

    /// Reads all weights, where the mode keeps all.
    fn enter_all(&mut self, tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        if self.arrangement.mode().keeps_all() {
            // The text encoders last, since they go first: the room that they leave is not between the others' weights.
            for part in [self.decoder.part(), &self.unet_part].into_iter().chain(self.text.parts()) {
                tell(Stage::Load.begin())?;
                part.enter(&Keep::Whole)?;
            }
        }
        Ok(())
    }

    /// The model's folder.
    pub fn model(&self) -> &ModelFolder {
        &self.model
    }

    /// How long the stages took so far, over all jobs.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Asks for a trace of the next job: of its second call of the denoiser, or of the first where there is one alone.
    /// The file is written when the latents of the first batch are done.
    pub fn trace(&mut self, file: TraceFile) {
        self.trace = Some(file);
    }

    /// Makes these LoRAs the ones that are in the weights, added in this order; none takes all away, and the weights are
    /// the bytes that they were. Only segments that change are read again. [`Self::txt2img`] does so with its job's.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no such file, [`Error::Weights`] where one does not fit the model. Where that
    /// is found out, nothing has changed yet.
    pub fn set_loras(&mut self, loras: &[LoraUse]) -> Result<()> {
        let result = self.loras.set(loras, &networks(&self.unet_part, &self.text));
        let changed = result.as_ref().copied().unwrap_or(Changed::ALL); // whatever came before an error
        if changed.unet {
            self.recorded = RecordedStep::default(); // it reads the weights where they were
        }
        self.text.set_loras(self.loras.files(), changed.text);
        result.map(drop)
    }

    /// Makes the pictures of `job`. `watch` gets them one by one, and may stop the run between steps.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where `watch` stopped the run, [`Error::NotANumber`] where the numbers went wrong: no
    /// such picture is handed out.
    pub fn txt2img(&mut self, job: &Job, watch: &mut dyn FnMut(Event) -> Result<ControlFlow<()>>) -> Result<()> {
        let schedule = job.schedule(&self.model)?;
        let mut tell = |event| match watch(event)? {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        };
        self.attempt(Stage::Load, &mut tell, |engine, _| engine.set_loras(&job.loras))?;
        if self.arrangement.prepare(self.text.work(job)?)? {
            self.clear()?;
        }
        self.arrangement.plan().log();
        let total = schedule.points().len() * job.batch_count;
        for batch in 0..job.batch_count {
            let mut tell = |event| match watch(event)? {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(Error::Interrupted),
            };
            let first = batch * job.batch_size;
            let done = batch * schedule.points().len();
            let step_event = |step| Event::Step { done: done + step, total };
            let latents = self.attempt(Stage::Denoise, &mut tell, |engine, tell| {
                engine.latents(job, &schedule, first, tell, &step_event)
            })?;
            self.decode(job, &latents, first, &mut tell)?;
        }
        Ok(())
    }

    /// The latents of one batch, `(batch_size, c, h, w)` in f32.
    fn latents(
        &mut self,
        job: &Job,
        schedule: &Schedule,
        first: usize,
        tell: &mut dyn FnMut(Event) -> Result<()>,
        step_event: &dyn Fn(usize) -> Event,
    ) -> Result<Tensor> {
        tell(Stage::Encode.begin())?;
        let start = Instant::now();
        let steering = self.text.steering(job, first, job.batch_size);
        if !self.text.knows(job, &steering) {
            self.make_room_for(Stage::Encode);
        }
        let kept = self.arrangement.mode().keeps_all() && !self.device.is_cpu();
        let keep = self.arrangement.keep(Stage::Encode);
        let mut conditions = self.text.conditions(job, steering, &keep, kept)?;
        let CacheCounts { encoded, known } = self.text.counts();
        (self.timings.texts_encoded, self.timings.texts_known) = (encoded, known);
        self.after("encoded");
        let guide = Guide::new(job, &conditions, schedule.points().len());
        let mut on = guide.is_on(0);
        self.make_room_for(Stage::Denoise);
        self.unet_part.enter(&self.arrangement.keep(Stage::Denoise))?;
        let f = self.model.vae_config().downscale();
        let shape = (self.model.vae_config().latent_channels, job.height / f, job.width / f);
        let (conditioning, scale) = (conditions.at(0, on)?, guide.scale_within_step(on));
        let unet = GuidedUnet::new(&self.unet, &mut self.recorded, &conditioning, scale, self.dtype)?;
        let mut unet = unet.with_weights(conditions.weights(shape, &self.device)?);
        self.timings.encode += start.elapsed();

        tell(Stage::Denoise.begin())?;
        let start = Instant::now();
        let mut noise = job.noise(first, f);
        let latents = (noise.latents(shape)?.to_device(&self.device)? * schedule.init_noise_sigma())?;
        let mut failure = None;
        let mut warm = Asked::default();
        let (mut pace, mut told) = (Pace::new(&self.device), 0);
        let mut on_step = |step: &StepInfo<'_>| {
            if step.index == 0 {
                warm = Asked::so_far();
            }
            let news = pace.started(step.index + 1).and_then(|done| {
                told = done;
                if done == 0 { Ok(()) } else { tell(step_event(done)) }
            });
            match news {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let mut traced = None;
        let trace_at = self.trace.as_ref().map(|_| 1.min(schedule.points().len() - 1));
        let mut calls = 0..;
        let model = |x: &Tensor, timestep: f64| {
            let call = calls.next();
            let evaluation = call.unwrap_or_default();
            let step = step_of(evaluation, schedule.points().len(), job.steps);
            let wanted = guide.is_on(evaluation);
            if wanted != on || conditions.changes_at(step, wanted) {
                on = wanted;
                unet.condition(&conditions.at(step, on)?, guide.scale_within_step(on))?;
            }
            if call != trace_at || call.is_none() {
                return guide.answer(unet.forward(x, timestep)?, on);
            }
            let (y, trace) = unet.traced(x, timestep)?;
            traced = Some(trace);
            guide.answer(y, on)
        };
        let latents = match sample::<Error, _>(schedule, model, &latents, &mut noise, &mut on_step) {
            Err(Error::Interrupted) => return Err(failure.unwrap_or(Error::Interrupted)),
            other => other?,
        };
        if let Some(streamed) = self.unet_part.streamed()? {
            log_streamed(&streamed, schedule.points().len());
        }
        host_memory::log_steps(schedule.points().len() - 1, Asked::so_far().since(warm));
        match count_not_finite(&latents)? {
            0 => {}
            count => {
                let remedy = "try --dtype f32, or a model whose weights are not damaged";
                return Err(Error::NotANumber { stage: "the denoiser", count, remedy });
            }
        }
        if told < schedule.points().len() {
            tell(step_event(schedule.points().len()))?; // the values were read, so that the card is done
        }
        self.timings.denoise += start.elapsed();
        self.timings.steps += schedule.points().len();
        self.after("denoised");
        if let (Some(file), Some(step), Some(trace)) = (self.trace.take(), trace_at, traced) {
            let title = format!("{}: step, {} of {}x{}", self.model.name(), job.batch_size, job.width, job.height);
            file.write([&StepTrace::new(title, &self.device, self.dtype, step, trace)])?;
        }
        Ok(latents)
    }

    /// Runs a stage. Where memory is out, all weights go, and it runs again in the next smaller mode.
    ///
    /// # Errors
    /// What the stage reports; [`Error::is_out_of_memory`] where the smallest mode has no room either.
    fn attempt<T>(
        &mut self,
        stage: Stage,
        tell: &mut dyn FnMut(Event) -> Result<()>,
        mut run: impl FnMut(&mut Self, &mut dyn FnMut(Event) -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let error = match run(self, tell) {
                Err(error) if error.is_out_of_memory() => error,
                other => return other,
            };
            let from = self.arrangement.describe(stage);
            if self.arrangement.shrink(stage)?.is_none() {
                return Err(error);
            }
            let to = self.arrangement.describe(stage);
            tracing::warn!(stage = stage.doing(), from, to, "{error}");
            self.clear()?;
            tell(Event::Smaller { stage, from, to })?;
        }
    }

    /// Gives back all memory but that of encoded texts.
    fn clear(&mut self) -> Result<()> {
        self.recorded = RecordedStep::default();
        self.text.parts().for_each(Part::leave);
        self.unet_part.leave();
        self.decoder.part().leave();
        HostPool::trim(0.0);
        if let Some(pool) = &self.pool {
            pool.trim(0.0)?;
        }
        Ok(())
    }

    /// Logs what memory holds after a stage, and gives back what waits in a card's pool: where memory is scarce all of it.
    fn after(&self, stage: &str) {
        host_memory::log(stage);
        host_memory::log_card(self.pool.as_ref(), stage);
        let threshold = if self.arrangement.mode().keeps_all() { host_memory::CARD_TRIM_ABOVE } else { 0.0 };
        host_memory::trim_card(self.pool.as_ref(), threshold, stage);
    }

    /// Where the mode keeps one network at a time, drops the weights of those that `stage` does not need.
    fn make_room_for(&mut self, stage: Stage) {
        if self.arrangement.mode().keeps_all() {
            return;
        }
        if stage != Stage::Encode {
            self.text.parts().for_each(Part::leave);
        }
        if stage != Stage::Denoise {
            self.recorded = RecordedStep::default(); // it reads the weights where they were
            self.unet_part.leave();
        }
        if stage != Stage::Decode {
            self.decoder.part().leave();
        }
        host_memory::trim_card(self.pool.as_ref(), 0.0, stage.id());
    }

    /// Decodes the latents of one batch, one picture at a time, and hands the pictures out.
    fn decode(
        &mut self,
        job: &Job,
        latents: &Tensor,
        first: usize,
        tell: &mut dyn FnMut(Event) -> Result<()>,
    ) -> Result<()> {
        host_memory::trim("decode");
        self.make_room_for(Stage::Decode);
        for i in 0..job.batch_size {
            tell(Stage::Decode.begin())?;
            let start = Instant::now();
            let one = latents.narrow(0, i, 1)?;
            let (index, seed) = (first + i, job.seed_of(first + i));
            let widened = |tell: &mut dyn FnMut(Event) -> Result<()>, Widened { from, to }: Widened| {
                tell(Event::DecodeAgain { index, seed, from: from.as_str(), to: to.as_str() })
            };
            let image = self.attempt(Stage::Decode, tell, |engine, tell| {
                let (keep, tiling) = (engine.arrangement.keep(Stage::Decode), engine.arrangement.plan().tiling);
                let Self { recorded, decoder, .. } = engine;
                recorded.lend(|| decoder.decode(&one, &keep, tiling, &mut |news| widened(tell, news)))
            })?;
            self.timings.decode += start.elapsed();
            self.after("decoded");

            tell(Stage::Save.begin())?;
            let start = Instant::now();
            let picture = Picture::new(job, &self.model, index, &image, one.to_device(&Device::Cpu)?)?;
            tell(Event::Picture(Box::new(picture)))?;
            self.timings.save += start.elapsed();
            self.timings.pictures += 1;
        }
        Ok(())
    }
}

/// The parts that LoRAs change.
fn networks<'a>(unet: &'a Part, text: &'a TextEncoders) -> Vec<(Network, &'a Part)> {
    std::iter::once((Network::Unet, unet)).chain(TEXT_ENCODERS.into_iter().zip(text.parts())).collect()
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
