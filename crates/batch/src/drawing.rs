//! Images that have all in common but texts and noise: batch by batch, with encoding and decoding while steps run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::pipeline::{
    Batch, BatchRequest, BatchSink, BatchTimes, DecodedImage, Latents, OverlappedNetworks, Shape, begin_decoding,
    decode, run_batch,
};
use kiln_engine::{Engine, Error, Event, Job, Result, Stage};
use kiln_request::InputCache;

use super::device_run::DeviceRun;
use super::events::BatchEvent;
use super::groups::batches;
use super::image_task::ImageTask;
use super::journal::Seconds;
use super::overlap_worker::{self, Task};
use super::work_queue::Image;

/// Texts that each image of the next batch may need: the next batch's are encoded while the steps of this one run.
const TEXTS: usize = 2;

impl DeviceRun<'_, '_, '_> {
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

    /// Runs one batch, or several if memory is known to have no room for it. If that fails, its images are run one by one, so
    /// that one failure does not affect the others.
    fn run_images(&mut self, engine: &mut Engine, images: &[&(usize, Arc<Job>)], shape: Shape, n: usize) -> Result<()> {
        let most = self.size.most();
        if images.len() > most {
            return images.chunks(most).try_for_each(|part| self.run_images(engine, part, shape, most));
        }
        let start = Instant::now();
        let memory = engine.gpu_memory(); // not while others wait for the state
        let begun = self.state().begin_images(self.number, memory);
        if self.report.begun == 0.0 {
            self.report.begun = begun.as_secs_f64();
        }
        let overlapped = engine.overlapped();
        if overlapped.is_some() && self.worker.is_none() {
            self.worker = Some(overlap_worker::start()?);
        }
        let batch = Batch::of_jobs(images.iter().map(|(_, job)| &**job));
        let mut sink = SetImages { run: self, images, overlapped, times: BatchTimes::default(), given: 0 };
        let gives_way = sink.run.size.is_automatic() && images.len() > 1;
        let result = sink.run.common.trial.before(sink.run.number, images.len()).and_then(|()| {
            let request = BatchRequest::of_set(engine, &batch, shape, n)?;
            run_batch(engine, &batch, if gives_way { request.or_fail() } else { request }, &mut sink)
        });
        let given = sink.given;
        match result.and_then(|()| self.decode_the_rest(engine)) {
            Ok(()) => {
                self.size.took(images.len(), (self.common.trial.time)(images.len(), start.elapsed()));
                Ok(())
            }
            Err(error) if gives_way && given == 0 && has_no_room(&error) => {
                self.size.no_room(images.len());
                let (from, to) = (images.len(), self.size.most());
                tracing::warn!("{from} images at once: {error}");
                let text = format!("no memory for {from} images at once; going on with {to}");
                self.state().tell(BatchEvent::Warning(text))?;
                self.run_images(engine, images, shape, n)
            }
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
        let rest = self.waiting(|waits| &mut waits.decoding, || worker.finish());
        let told = self.take(rest);
        told.and(self.decode_the_rest(engine))
    }
}

/// Whether fewer images at once may do.
fn has_no_room(error: &Error) -> bool {
    error.is_out_of_memory() || matches!(error, Error::Budget { .. })
}

/// Takes the images of one batch of a set.
struct SetImages<'r, 's, 'a, 'w> {
    run: &'r mut DeviceRun<'s, 'a, 'w>,
    images: &'r [&'r (usize, Arc<Job>)],
    /// The networks that run while steps run, if any.
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
            worker.offer((Task::Encode(TEXTS * self.images.len()), networks.clone()));
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
        let task = self.task(engine, place, latents);
        self.run.waiting(|waits| &mut waits.decoding, || worker.give((Task::Decode(Box::new(task)), networks)))?;
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
