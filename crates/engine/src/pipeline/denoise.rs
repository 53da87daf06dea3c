//! The stage denoise: a batch's way down its schedule.

use std::time::Instant;

use candle_core::{Device, Tensor};
use kiln_media::Gray8Image;
use kiln_ops::trace::Trace;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::host_memory::{self, SystemRequests};
use crate::pipeline::batch::Batch;
use crate::pipeline::event::{Event, OnEvent, Stage};
use crate::pipeline::group::Group;
use crate::pipeline::preview::PreviewPace;
use crate::pipeline::run::Progress;
use crate::pipeline::running::RunningBatch;
use crate::pipeline::steering::steer_step;
use crate::pipeline::throttle::StepThrottle;
use crate::pipeline::trace::StepTrace;

/// The result of the steps of a batch.
pub(crate) struct Denoised {
    /// `(n, c, h, w)` in f32, in the host's memory.
    pub(super) latents: Tensor,
    /// See [`Latents::visible`](crate::pipeline::Latents).
    pub(super) visible: Option<Vec<Gray8Image>>,
}

/// Runs a group down its schedule, as the only group of a running batch.
pub(super) fn denoise(
    engine: &mut Engine,
    batch: &Batch<'_>,
    group: Group,
    progress: Progress,
    on_event: &mut OnEvent<'_>,
) -> Result<Denoised> {
    on_event(Event::begin(Stage::Denoise))?;
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
            on_event(Event::begin(Stage::Refine))?;
        }
        if acting.contains(&0) {
            engine.advance(&mut running, trace.as_mut())?;
        } else {
            // The steps that are done are not done again.
            engine.attempt(Stage::Refine, on_event, |engine, _| engine.advance(&mut running, trace.as_mut()))?;
        }
        let ends = steer_step(engine.steering.as_ref(), &mut running, id, (call + 1, calls))?;
        engine.read_ahead(&running);
        traced = trace.or(traced);
        if call == 0 {
            warm = SystemRequests::so_far();
        }
        told = throttle.started(&device, call + 1)?;
        if told > 0 {
            on_event(progress.event(told))?;
        }
        if let Some(pace) = pace.as_mut().filter(|_| previewed) {
            let begin = Instant::now();
            for (place, image) in engine.preview(&running, id)?.into_iter().enumerate() {
                let (_, index) = batch.image(place);
                on_event(Event::Preview { index, step: progress.before + call + 1, image })?;
            }
            pace.done(begin);
        }
        if ends {
            break;
        }
    }
    engine.log_of_stream(acting.first().copied().unwrap_or_default(), calls)?;
    host_memory::log_steps(calls.saturating_sub(1), SystemRequests::so_far().since(warm));
    let group = running.finish(id)?;
    let denoised = finished(&group)?;
    engine.timings.skipped += group.network().skipped_evaluations()?.unwrap_or(0);
    if told < calls {
        on_event(progress.event(calls))?; // the values were read, so that the GPU is done
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

/// The weight of a word in a prompt from which on it is the likely cause of values that are not finite.
const UNUSUAL_WEIGHT: f32 = 100.0;

/// The result of the steps of a group, in the host's memory, checked.
///
/// # Errors
/// [`Error::NotANumber`] if values are not finite.
pub(crate) fn finished(group: &Group) -> Result<Denoised> {
    let latents = group.latents().to_device(&Device::Cpu)?;
    log_skipped(group)?;
    let latents = checked(latents, group.turns().current().conditions.heaviest())?;
    Ok(Denoised { latents, visible: group.visible()? })
}

/// Logs for how many evaluations of a group the first-block cache stood, if it has one.
pub(super) fn log_skipped(group: &Group) -> Result<()> {
    if let Some(skipped) = group.network().skipped_evaluations()? {
        let evaluations = group.images() * group.evaluations();
        tracing::info!(skipped, evaluations, "the first-block cache stood for all blocks but the first");
    }
    Ok(())
}

/// `latents` after the last step. `heaviest` is the largest weight of a word in their prompts.
///
/// # Errors
/// [`Error::NotANumber`] if values are not finite.
pub(super) fn checked(latents: Tensor, heaviest: f32) -> Result<Tensor> {
    match kiln_ops::count_not_finite(&latents)? {
        0 => Ok(latents),
        count => {
            let remedy = match heaviest.abs() > UNUSUAL_WEIGHT {
                true => format!("the weight {heaviest:.0e} of a word in a prompt is too large; 0.5 to 1.5 are usual"),
                false => "try `dtype` f32, or a model whose weights are not damaged".into(),
            };
            Err(Error::NotANumber { stage: "the denoiser", count, remedy })
        }
    }
}
