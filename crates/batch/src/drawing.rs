//! Images that have all in common but texts and noise: batch by batch, with encoding and decoding while steps run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kiln_engine::pipeline::{
    Batch, BatchRequest, BatchSink, BatchTimes, DecodedImage, Latents, OverlappedNetworks, Shape, begin_decoding,
    decode, run_batch,
};
use kiln_engine::{BatchSize, Engine, Error, Event, Job, Planner, Result, Stage};
use kiln_request::InputCache;

use super::device_run::DeviceRun;
use super::groups::batches;
use super::image_task::ImageTask;
use super::journal::Seconds;
use super::overlap_worker::OverlapWorker;
use super::work_queue::Image;

/// Texts that each image of the next batch may need: the next batch's are encoded while the steps of this one run.
const TEXTS: usize = 2;

impl DeviceRun<'_, '_, '_> {
    /// The images of a batch in a group of `left` images, of which `first` is one.
    pub(super) fn batch_size(&self, first: &Job, model: usize, left: usize) -> usize {
        let options = self.common.options;
        let share = left.div_ceil(options.setups.len().max(1));
        match options.batch_size {
            _ if options.deterministic || left == 1 => 1,
            BatchSize::Of(n) => n.max(1),
            // What has no room at all is refused when it is run.
            BatchSize::Auto => {
                let model = &self.common.models[model];
                Planner::auto_batch_size_of(model, first, self.setup, share).unwrap_or(1)
            }
        }
    }

    /// Makes images that have all in common but texts and noise, in batches of `n`.
    pub(super) fn run_portion(&mut self, engine: &mut Engine, portion: &[Image], n: usize) -> Result<()> {
        let mut shapes = Vec::with_capacity(portion.len());
        for (i, (id, job)) in portion.iter().enumerate() {
            match engine.shape_of(job) {
                Ok(shape) => shapes.push((i, shape)),
                Err(error) => self.fail(engine, *id, error.to_string(), false)?,
            }
        }
        let shape_of: HashMap<usize, Shape> = shapes.iter().copied().collect();
        let batches = batches(shapes, n);
        let mut inputs = InputCache::default();
        for (i, batch) in batches.iter().enumerate() {
            engine.foresee(batches[i + 1..].iter().flatten().map(|&i| &*portion[i].1));
            let mut images = Vec::with_capacity(batch.len());
            for (id, job) in batch.iter().map(|&i| &portion[i]) {
                match job.with_pixels(&mut inputs) {
                    Ok(job) => images.push((*id, job)),
                    Err(error) => self.fail(engine, *id, error.to_string(), false)?,
                }
            }
            let images: Vec<&(usize, Arc<Job>)> = images.iter().collect();
            if !images.is_empty() {
                self.run_images(engine, &images, shape_of[&batch[0]], n)?;
            }
        }
        Ok(())
    }

    /// Runs one batch. Where that fails, its images are run one by one, so that one does not take others along.
    fn run_images(&mut self, engine: &mut Engine, images: &[&(usize, Arc<Job>)], shape: Shape, n: usize) -> Result<()> {
        self.state().begin_images(self.number, engine.gpu_memory());
        let overlapped = engine.overlapped();
        if overlapped.is_some() && self.worker.is_none() {
            self.worker = Some(OverlapWorker::start()?);
        }
        let batch = Batch::of_jobs(images.iter().map(|(_, job)| &**job));
        let mut sink = SetImages { run: self, images, overlapped, times: BatchTimes::default(), given: 0 };
        let result = match (sink.run.common.is_lost)(sink.run.number) {
            true => Err(Error::Device("a test has it lost".into())),
            false => BatchRequest::of_set(engine, &batch, shape, n)
                .and_then(|request| run_batch(engine, &batch, request, &mut sink)),
        };
        let given = sink.given;
        match result.and_then(|()| self.decode_the_rest(engine)) {
            Ok(()) => Ok(()),
            Err(error @ Error::Interrupted) => Err(error),
            Err(error) if images.len() == 1 && given == 0 => {
                self.fail(engine, images[0].0, error.to_string(), error.is_of_device())
            }
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
                Err(error) if !matches!(error, Error::Interrupted) => {
                    self.fail(engine, id, error.to_string(), error.is_of_device())?
                }
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
struct SetImages<'r, 's, 'a, 'w> {
    run: &'r mut DeviceRun<'s, 'a, 'w>,
    images: &'r [&'r (usize, Arc<Job>)],
    /// The networks that run while steps run, where there are any.
    overlapped: Option<OverlappedNetworks>,
    times: BatchTimes,
    /// Images that went on to the worker or to the threads that save.
    given: usize,
}

impl SetImages<'_, '_, '_, '_> {
    fn task<S>(&self, engine: &Engine, place: usize, content: S) -> ImageTask<S> {
        let part = |duration: Duration| duration.as_secs_f64() / self.images.len().max(1) as f64;
        let BatchTimes { encode, denoise } = self.times;
        let seconds = Seconds { encode: part(encode), denoise: part(denoise), ..Seconds::default() };
        let (id, job) = self.images[place];
        ImageTask { id: *id, job: job.clone(), origin: engine.origin(), seconds, content }
    }
}

impl BatchSink for SetImages<'_, '_, '_, '_> {
    fn event(&mut self, event: Event) -> Result<()> {
        if let (Event::Begin(Stage::Denoise), Some(worker), Some(networks)) =
            (&event, &self.run.worker, &self.overlapped)
        {
            worker.encode(TEXTS * self.images.len(), networks.clone());
        }
        self.run.event(event)
    }

    fn latents(
        &mut self,
        engine: &Engine,
        place: usize,
        latents: Latents,
        times: BatchTimes,
    ) -> Result<Option<Latents>> {
        self.times = times;
        let (Some(worker), Some(networks)) = (&self.run.worker, engine.overlapped()) else {
            return Ok(Some(latents));
        };
        worker.decode(self.task(engine, place, latents), networks)?;
        self.given += 1;
        Ok(None)
    }

    fn image(&mut self, engine: &mut Engine, place: usize, image: DecodedImage) -> Result<()> {
        let task = self.task(engine, place, image);
        self.run.save(task)?;
        self.given += 1;
        Ok(())
    }
}
