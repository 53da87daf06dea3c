//! One batch: conditions, latents, images.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kiln_scheduler::{Schedule, StepInfo, sample};
use kiln_weights::StreamReport;

use super::Engine;
use crate::conditioning::step_of;
use crate::decoder::Widened;
use crate::denoise::{GuidedUnet, count_not_finite};
use crate::error::{Error, Result};
use crate::event::{Event, Stage, Timings};
use crate::guidance::Guide;
use crate::host_memory::{self, Asked};
use crate::lora::LoraUse;
use crate::pace::Pace;
use crate::plan::Work;
use crate::prompt_cache::CacheCounts;
use crate::resolved::Job;
use crate::text::Shape;
use crate::together::Together;
use crate::trace::StepTrace;

/// A picture whose steps are done.
#[derive(Debug, Clone)]
pub(crate) struct Undecoded {
    /// `(1, c, h, w)` in f32, in the host's memory.
    pub(crate) latents: Tensor,
    /// Its number in its job.
    pub(crate) index: usize,
    /// Its seed.
    pub(crate) seed: u64,
}

/// A picture that is decoded.
pub(crate) struct Drawn {
    /// `(1, 3, h, w)` of about -1 to 1 in f32, in the host's memory.
    pub(crate) image: Tensor,
    /// What was decoded, as [`Undecoded`] has it.
    pub(crate) latents: Tensor,
    /// How long decoding took.
    pub(crate) decode: Duration,
}

/// How long a batch took before it was decoded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prepared {
    pub(crate) encode: Duration,
    pub(crate) denoise: Duration,
}

impl Undecoded {
    /// The picture at `place` of a batch with these latents, `(n, c, h, w)`.
    pub(super) fn of(together: &Together<'_>, latents: &Tensor, place: usize) -> Result<Self> {
        let (job, index) = together.picture(place);
        Ok(Self { latents: latents.narrow(0, place, 1)?, index, seed: job.seed_of(index) })
    }

    /// Says that it is decoded again.
    pub(crate) fn again(&self, Widened { from, to }: Widened) -> Event {
        Event::DecodeAgain { index: self.index, seed: self.seed, from: from.as_str(), to: to.as_str() }
    }
}

impl Engine {
    /// Draws one batch as `work` describes it, up to its latents.
    ///
    /// # Errors
    /// As [`Engine::txt2img`].
    pub(crate) fn draw(
        &mut self,
        together: &Together<'_>,
        work: Work,
        tell: &mut dyn FnMut(Event) -> Result<()>,
    ) -> Result<(Vec<Undecoded>, Prepared)> {
        let before = self.timings;
        let schedule = together.job().schedule(&self.model)?;
        self.prepare(work)?;
        let total = schedule.points().len();
        let latents = self.attempt(Stage::Denoise, tell, |engine, tell| {
            engine.latents(together, &schedule, tell, &|done| Event::Step { done, total })
        })?;
        let Timings { encode, denoise, .. } = self.timings;
        let prepared = Prepared { encode: encode - before.encode, denoise: denoise - before.denoise };
        let pictures = (0..together.len()).map(|place| Undecoded::of(together, &latents, place));
        Ok((pictures.collect::<Result<_>>()?, prepared))
    }

    /// [`Engine::set_loras`], in a smaller mode where memory is out.
    pub(crate) fn take_loras(&mut self, loras: &[LoraUse], tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        self.attempt(Stage::Load, tell, |engine, _| engine.set_loras(loras))
    }

    /// What a picture's texts make of it, with the LoRAs that are in the weights now.
    pub(crate) fn shape_of(&self, job: &Job) -> Result<Shape> {
        self.text().shape(&Together::of_jobs([job]))
    }

    /// What pictures that are made `together` take in a batch of up to `n` of this shape.
    pub(crate) fn work_of(&self, together: &Together<'_>, shape: Shape, n: usize) -> Work {
        shape.work(together.job(), n, self.text().steering(together).texts.len())
    }

    /// Has the texts of pictures that come later encoded with the next ones that are new, since weights of text encoders that
    /// do not stay are read once for them all; or beside the steps, where that is done.
    pub(crate) fn foresee<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>) {
        let beside = self.beside().is_some();
        self.text().foresee(jobs, beside);
    }

    /// Bytes of the card's memory that are in use, where there is a card.
    pub(crate) fn card_memory(&self) -> Option<u64> {
        self.pool.as_ref()?.used().ok()
    }

    /// The latents of one batch, `(n, c, h, w)` in f32 in the host's memory.
    pub(super) fn latents(
        &mut self,
        together: &Together<'_>,
        schedule: &Schedule,
        tell: &mut dyn FnMut(Event) -> Result<()>,
        step_event: &dyn Fn(usize) -> Event,
    ) -> Result<Tensor> {
        tell(Stage::Encode.begin())?;
        let start = Instant::now();
        let job = together.job();
        let steering = self.text().steering(together);
        if !self.text().knows(job, &steering, together.len()) {
            self.make_room_for(Stage::Encode);
        }
        let kept = self.arrangement.mode().keeps_all() && !self.device.is_cpu();
        let keep = self.arrangement.keep(Stage::Encode)?;
        let mut proceed = |done, total| tell(Event::Text { done, total });
        let mut conditions = self.text().conditions(job, steering, together.len(), &keep, kept, &mut proceed)?;
        let CacheCounts { encoded, known } = self.text().counts();
        (self.timings.texts_encoded, self.timings.texts_known) = (encoded, known);
        self.after("encoded");
        let guide = Guide::new(job, &conditions, schedule.points().len());
        let mut on = guide.is_on(0);
        self.make_room_for(Stage::Denoise);
        self.unet_part.enter(&self.arrangement.keep(Stage::Denoise)?)?;
        let f = self.model.vae_config().downscale();
        let shape = (self.model.vae_config().latent_channels, job.height / f, job.width / f);
        let (conditioning, scale) = (conditions.at(0, on)?, guide.scale_within_step(on));
        let unet = GuidedUnet::new(&self.unet, Some(&mut self.recorded), &conditioning, scale, self.dtype)?;
        let mut unet = unet.with_weights(conditions.weights(shape, &self.device)?);
        self.timings.encode += start.elapsed();

        tell(Stage::Denoise.begin())?;
        let start = Instant::now();
        let mut noise = together.noise(f);
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
        let latents = latents.to_device(&Device::Cpu)?;
        match count_not_finite(&latents)? {
            0 => {}
            count => {
                let remedy = "try `dtype` f32, or a model whose weights are not damaged";
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
            let title = format!("{}: step, {} of {}x{}", self.model.name(), together.len(), job.width, job.height);
            file.write([&StepTrace::new(title, &self.device, self.dtype, step, trace)])?;
        }
        Ok(latents)
    }

    /// Makes room for decoding what [`Self::draw`] or [`Self::latents`] gave.
    pub(crate) fn begin_decoding(&mut self) {
        host_memory::trim("decode");
        self.make_room_for(Stage::Decode);
    }

    /// Decodes one picture of a batch.
    pub(crate) fn decode(&mut self, picture: &Undecoded, tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<Drawn> {
        tell(Stage::Decode.begin())?;
        let start = Instant::now();
        let image = self.attempt(Stage::Decode, tell, |engine, tell| {
            let (keep, tiling) = (engine.arrangement.keep(Stage::Decode)?, engine.arrangement.plan().tiling);
            let mut decoder = engine.decoder();
            let widened = &mut |news| tell(picture.again(news));
            engine.recorded.lend(|| decoder.decode(&picture.latents, &keep, tiling, widened))
        })?;
        let decode = start.elapsed();
        self.timings.decode += decode;
        self.after("decoded");
        Ok(Drawn { image, latents: picture.latents.clone(), decode })
    }
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
