//! One batch through its stages: encode, encode-image, denoise, decode.

use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;
use crate::generated_image::DecodedImage;
use crate::pipeline::batch::Batch;
use crate::pipeline::decode::{Latents, begin_decoding, decode};
use crate::pipeline::denoise::denoise;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::first_stages::first_stages;
use crate::pipeline::second_pass::second_pass;
use crate::pipeline::text_plan::{BatchTexts, Shape};
use crate::plan::Workload;

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
    /// The progress after so many more evaluations.
    pub(super) fn after(self, evaluations: usize) -> Self {
        Self { before: self.before + evaluations, ..self }
    }

    pub(super) fn event(self, done: usize) -> Event {
        Event::Step { done: self.before + done, total: self.total }
    }
}

/// The texts and memory of a batch, besides its jobs.
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
    /// A request whose memory is planned for `work`.
    pub(crate) fn new(texts: BatchTexts, work: Workload, progress: Progress) -> Self {
        Self { texts, work, progress, may_shrink: true }
    }

    /// The request of a batch of an image set. `shape` is that of its images' texts; memory is planned for `n` images, so that
    /// a last batch that is smaller is not planned again.
    ///
    /// # Errors
    /// Errors of the text encoders' tokenizers and of the schedule.
    pub fn of_set(engine: &mut Engine, batch: &Batch<'_>, shape: Shape, n: usize) -> Result<Self> {
        let texts = engine.plan_texts(batch)?;
        let work = shape.work(batch.job(), n, texts.texts());
        let total = batch.job().evaluations_of_passes(&engine.model)?;
        Ok(Self::new(texts, work, Progress { before: 0, total }))
    }

    /// Has the batch fail if memory runs out before it is decoded, instead of running again with less of the model in memory:
    /// a smaller batch is the better way then, and the batches after it find the model as it was planned.
    pub fn or_fail(self) -> Self {
        Self { may_shrink: false, ..self }
    }
}

/// Receives the results of a batch as they are computed. An error of a method stops the run, and is its error.
pub trait BatchSink {
    /// An event of the run.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) to stop the run.
    fn event(&mut self, event: Event) -> Result<()>;

    /// The latents of image `place` of the batch. The engine decodes what is returned; `None` means that the caller decodes
    /// the latents itself ([`OverlappedNetworks::decode`](crate::pipeline::OverlappedNetworks::decode)).
    ///
    /// # Errors
    /// Errors of the implementation.
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
    /// Errors of the implementation.
    fn image(&mut self, engine: &mut Engine, place: usize, image: DecodedImage) -> Result<()>;
}

/// Runs all stages of one batch, and hands every image to `sink`: the one way from a batch to its images, for single calls
/// and image sets.
///
/// # Errors
/// Errors of [`Engine::txt2img`] and of `sink`.
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
    let denoised = engine.attempt(Stage::Denoise, &mut |event| sink.event(event), |engine, on_event| {
        let group = first_stages(engine, batch, &texts, None, on_event)?;
        denoise(engine, batch, group, progress, on_event)
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
