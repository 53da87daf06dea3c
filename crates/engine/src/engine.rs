//! A loaded model, and the way of a prompt through it.

use std::ops::ControlFlow;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::{DevicePool, HostPool};
use kiln_scheduler::{Schedule, StepInfo, sample};
use kiln_unet::Unet;
use kiln_weights::{Placement, open_component};

use crate::decoder::{Decoder, Widened};
use crate::denoise::{GuidedUnet, RecordedStep, count_not_finite};
use crate::error::{Error, Result};
use crate::event::{Event, Stage, Timings};
use crate::guidance::{Guide, conditional_half};
use crate::host_memory::{self, Asked};
use crate::mode::Mode;
use crate::model_folder::ModelFolder;
use crate::pace::Pace;
use crate::part::Part;
use crate::picture::Picture;
use crate::resolved::Job;
use crate::setup::{Place, Setup};
use crate::text::TextEncoders;
use crate::trace::{StepTrace, TraceFile};

/// A model that is loaded.
pub struct Engine {
    model: ModelFolder,
    device: Device,
    dtype: DType,
    text: TextEncoders,
    unet: Unet,
    unet_part: Part,
    recorded: RecordedStep,
    decoder: Decoder,
    mode: Mode,
    timings: Timings,
    /// Where the next job's trace goes.
    trace: Option<TraceFile>,
    /// Last, so that it is dropped after all that is on the card.
    pool: Option<DevicePool>,
}

impl Engine {
    /// Loads a model. `watch` is told of the stage, and may stop the load between parts.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is not there, [`Error::Weights`] where weights are missing or do not fit.
    pub fn load(model: ModelFolder, setup: &Setup, watch: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Self> {
        let start = Instant::now();
        let Place { device, dtype, pool } = setup.resolve()?;
        let mode = Mode::asked(setup.memory.mode);
        tracing::info!(model = %model.path().display(), ?device, ?dtype, %mode, "loading");
        let placement = Placement::new(device.clone(), dtype);
        // All files are opened and checked first, so that one that does not fit is refused at once.
        let decoder = Decoder::open(&model, setup.taesd.as_deref(), &placement)?;
        let unet = Unet::new(model.unet_config().clone());
        let unet_part = Part::new(unet.segments(), open_component(&model.path().join("unet"))?, &placement);
        unet_part.check()?;
        let text = TextEncoders::open(&model, &placement)?;
        let (recorded, timings, trace) = (RecordedStep::default(), Timings::default(), None);
        let mut engine =
            Self { model, device, dtype, text, unet, unet_part, recorded, decoder, mode, timings, trace, pool };
        let mut tell = |event| if watch(event).is_break() { Err(Error::Interrupted) } else { Ok(()) };
        engine.attempt(Stage::Load, &mut tell, |engine, tell| engine.enter_all(tell))?;
        engine.timings.load = start.elapsed();
        Ok(engine)
    }

    /// Reads all weights, where the mode keeps all.
    fn enter_all(&mut self, tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        if self.mode.keeps_all() {
            // The text encoders last, since they go first: the room that they leave is not between the others' weights.
            for part in [self.decoder.part(), &self.unet_part].into_iter().chain(self.text.parts()) {
                tell(Event::Begin(Stage::Load))?;
                part.enter()?;
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

    /// Makes the pictures of `job`. `watch` gets them one by one, and may stop the run between steps.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where `watch` stopped the run, [`Error::NotANumber`] where the numbers went wrong: no
    /// such picture is handed out.
    pub fn txt2img(&mut self, job: &Job, watch: &mut dyn FnMut(Event) -> Result<ControlFlow<()>>) -> Result<()> {
        let schedule = job.schedule(&self.model)?;
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
        tell(Event::Begin(Stage::Encode))?;
        let start = Instant::now();
        if !self.text.is_known(job, job.batch_size) {
            self.make_room_for(Stage::Encode);
        }
        let kept = self.mode.keeps_all() && !self.device.is_cpu();
        let conditioning = self.text.conditioning(job, job.batch_size, kept)?;
        let guide = Guide::new(job, schedule.points().len());
        let conditional = if job.is_guided() { conditional_half(&conditioning)? } else { conditioning.clone() };
        let mut on = guide.is_on(0);
        let conditions = |on: bool| if on { &conditioning } else { &conditional };
        self.make_room_for(Stage::Denoise);
        self.unet_part.enter()?;
        let mut unet =
            GuidedUnet::new(&self.unet, &mut self.recorded, conditions(on), guide.scale_within_step(on), self.dtype)?;
        self.timings.encode += start.elapsed();
        host_memory::log("encoded");

        tell(Event::Begin(Stage::Denoise))?;
        let start = Instant::now();
        let f = self.model.vae_config().downscale();
        let shape = (self.model.vae_config().latent_channels, job.height / f, job.width / f);
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
            let wanted = guide.is_on(call.unwrap_or_default());
            if wanted != on {
                on = wanted;
                unet.condition(conditions(on), guide.scale_within_step(on))?;
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
        host_memory::log_steps(schedule.points().len() - 1, Asked::so_far().since(warm));
        host_memory::log("denoised");
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
            let from = self.mode;
            let Some(to) = from.smaller(self.unet.segments().bytes(self.dtype)) else { return Err(error) };
            tracing::warn!(stage = stage.doing(), %from, %to, "{error}");
            self.mode = to;
            self.clear()?;
            tell(Event::Smaller { stage, from, to })?;
        }
    }

    /// Gives back all memory but the conditions of the last job.
    fn clear(&mut self) -> Result<()> {
        self.recorded = RecordedStep::default();
        self.text.parts().for_each(Part::leave);
        self.unet_part.leave();
        self.decoder.part().leave();
        HostPool::trim(0.0);
        self.pool.as_ref().map_or(Ok(()), |pool| Ok(pool.trim()?))
    }

    /// Where the mode keeps one network at a time, drops the weights of those that `stage` does not need.
    fn make_room_for(&mut self, stage: Stage) {
        if self.mode.keeps_all() {
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
            tell(Event::Begin(Stage::Decode))?;
            let start = Instant::now();
            let one = latents.narrow(0, i, 1)?;
            let (index, seed) = (first + i, job.seed_of(first + i));
            let image = self.attempt(Stage::Decode, tell, |engine, tell| {
                engine.decoder.decode(&one, &mut |Widened { from, to }| {
                    tell(Event::DecodeAgain { index, seed, from: from.as_str(), to: to.as_str() })
                })
            })?;
            self.timings.decode += start.elapsed();
            host_memory::log("decoded");

            tell(Event::Begin(Stage::Save))?;
            let start = Instant::now();
            let picture = Picture::new(job, &self.model, index, &image, one.to_device(&Device::Cpu)?)?;
            tell(Event::Picture(Box::new(picture)))?;
            self.timings.save += start.elapsed();
            self.timings.pictures += 1;
        }
        Ok(())
    }
}
