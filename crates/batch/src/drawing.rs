//! Images that have all in common but texts and noise: batch by batch, with encoding and decoding while steps run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::pipeline::{
    Batch, BatchRequest, BatchSink, BatchTimes, DecodedImage, Latents, OverlappedNetworks, Shape, begin_decoding,
    decode, run_batch,
};
use kiln_engine::{BatchSize, Engine, Error, Event, Job, Planner, Result, Stage};
use kiln_models::ModelFolder;
use kiln_request::InputCache;

use super::groups::batches;
use super::image_task::ImageTask;
use super::journal::Seconds;
use super::overlap_worker::OverlapWorker;
use super::plan::BatchOptions;
use super::run_state::RunState;

/// Batches whose texts are looked at before they are run.
const LOOK_AHEAD: usize = 64;

/// Texts that each image of the next batch may need: the next batch's are encoded while the steps of this one run.
const TEXTS: usize = 2;

impl RunState<'_, '_> {
    /// Makes images that have all in common but texts and noise.
    pub(super) fn run_group(
        &mut self,
        engine: &mut Engine,
        model: &Arc<ModelFolder>,
        group: &[&(usize, Arc<Job>)],
        options: &BatchOptions,
    ) -> Result<()> {
        let Some((_, first)) = group.first() else { return Ok(()) };
        if let Err(error) = engine.take_networks(first, &mut |event| self.event(event)) {
            return match error {
                Error::Interrupted => Err(error),
                error => {
                    let error = error.to_string();
                    group.iter().try_for_each(|(id, _)| self.fail(*id, &error))
                }
            };
        }
        let n = match options.batch_size {
            _ if options.deterministic || group.len() == 1 => 1,
            BatchSize::Of(n) => n.max(1),
            // What has no room at all is refused when it is run.
            BatchSize::Auto => Planner::auto_batch_size_of(model, first, &options.setup, group.len()).unwrap_or(1),
        };
        let mut inputs = InputCache::default();
        for group in group.chunks(LOOK_AHEAD.saturating_mul(n)) {
            let mut shapes = Vec::with_capacity(group.len());
            for (i, (id, job)) in group.iter().enumerate() {
                match engine.shape_of(job) {
                    Ok(shape) => shapes.push((i, shape)),
                    Err(error) => self.fail(*id, &error.to_string())?,
                }
            }
            let shape_of: HashMap<usize, Shape> = shapes.iter().copied().collect();
            let batches = batches(shapes, n);
            for (i, batch) in batches.iter().enumerate() {
                engine.foresee(batches[i + 1..].iter().flatten().map(|&i| &*group[i].1));
                let mut images = Vec::with_capacity(batch.len());
                for (id, job) in batch.iter().map(|&i| group[i]) {
                    match job.with_pixels(&mut inputs) {
                        Ok(job) => images.push((*id, job)),
                        Err(error) => self.fail(*id, &error.to_string())?,
                    }
                }
                let images: Vec<&(usize, Arc<Job>)> = images.iter().collect();
                if !images.is_empty() {
                    self.run_images(engine, &images, shape_of[&batch[0]], n)?;
                }
            }
        }
        Ok(())
    }

    /// Runs one batch. Where that fails, its images are run one by one, so that one does not take others along.
    fn run_images(&mut self, engine: &mut Engine, images: &[&(usize, Arc<Job>)], shape: Shape, n: usize) -> Result<()> {
        self.gpu_memory = engine.gpu_memory();
        self.first_image.get_or_insert_with(Instant::now);
        let overlapped = engine.overlapped();
        if overlapped.is_some() && self.worker.is_none() {
            self.worker = Some(OverlapWorker::start()?);
        }
        let batch = Batch::of_jobs(images.iter().map(|(_, job)| &**job));
        let mut sink = SetImages { state: self, images, overlapped, times: BatchTimes::default(), given: 0 };
        let result = BatchRequest::of_set(engine, &batch, shape, n)
            .and_then(|request| run_batch(engine, &batch, request, &mut sink));
        let given = sink.given;
        match result.and_then(|()| self.decode_the_rest(engine)) {
            Ok(()) => Ok(()),
            Err(error @ Error::Interrupted) => Err(error),
            Err(error) if images.len() == 1 && given == 0 => self.fail(images[0].0, &error.to_string()),
            Err(error) if given == images.len() => Err(error),
            Err(error) => {
                tracing::warn!("{} images at once: {error}; they are made one by one", images.len());
                images[given..].iter().try_for_each(|one| self.run_images(engine, &[one], shape, 1))
            }
        }
    }

    /// Decodes the images for which the worker had no memory, with all of the engine's ways to run in less.
    fn decode_the_rest(&mut self, engine: &mut Engine) -> Result<()> {
        while let Some(task) = self.undecoded.pop() {
            let id = task.id;
            begin_decoding(engine);
            let decoded = decode(engine, &task.content, &mut |event| self.event(event));
            match decoded.and_then(|image| self.save(task.with(image).0)) {
                Err(error) if !matches!(error, Error::Interrupted) => self.fail(id, &error.to_string())?,
                other => other?,
            }
        }
        Ok(())
    }

    /// Waits until all images whose steps are done are decoded.
    pub(super) fn finish_decoding(&mut self, engine: &mut Engine) -> Result<()> {
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let told = self.take(worker.finish());
        told.and(self.decode_the_rest(engine))
    }
}

/// Takes the images of one batch of a set.
struct SetImages<'s, 'a, 'w> {
    state: &'s mut RunState<'a, 'w>,
    images: &'s [&'s (usize, Arc<Job>)],
    /// The networks that run while steps run, where there are any.
    overlapped: Option<OverlappedNetworks>,
    times: BatchTimes,
    /// Images that went on to the worker or to the threads that save.
    given: usize,
}

impl SetImages<'_, '_, '_> {
    fn task<S>(&self, engine: &Engine, place: usize, content: S) -> ImageTask<S> {
        let part = |duration: Duration| duration.as_secs_f64() / self.images.len().max(1) as f64;
        let BatchTimes { encode, denoise } = self.times;
        let seconds = Seconds { encode: part(encode), denoise: part(denoise), ..Seconds::default() };
        let (id, job) = self.images[place];
        ImageTask { id: *id, job: job.clone(), origin: engine.origin(), seconds, content }
    }
}

impl BatchSink for SetImages<'_, '_, '_> {
    fn event(&mut self, event: Event) -> Result<()> {
        if let (Event::Begin(Stage::Denoise), Some(worker), Some(networks)) =
            (&event, &self.state.worker, &self.overlapped)
        {
            worker.encode(TEXTS * self.images.len(), networks.clone());
        }
        self.state.event(event)
    }

    fn latents(
        &mut self,
        engine: &Engine,
        place: usize,
        latents: Latents,
        times: BatchTimes,
    ) -> Result<Option<Latents>> {
        self.times = times;
        let (Some(worker), Some(networks)) = (&self.state.worker, engine.overlapped()) else {
            return Ok(Some(latents));
        };
        worker.decode(self.task(engine, place, latents), networks)?;
        self.given += 1;
        Ok(None)
    }

    fn image(&mut self, engine: &mut Engine, place: usize, image: DecodedImage) -> Result<()> {
        let task = self.task(engine, place, image);
        self.state.save(task)?;
        self.given += 1;
        Ok(())
    }
}
