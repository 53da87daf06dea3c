//! Drawing what has all in common but texts and noise: batch by batch, with encoding and decoding beside the steps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::groups::batches;
use super::journal::Seconds;
use super::overlap_worker::{Aside, Order};
use super::plan::BatchOptions;
use super::run_state::Desk;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::model_folder::ModelFolder;
use crate::pipeline::batch::Together;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::text::Shape;
use crate::plan::{BatchSize, Planner};
use crate::resolved::Job;

/// Batches whose texts are looked at before they are drawn.
const LOOK_AHEAD: usize = 64;

/// Texts that each picture of the next batch may need: the next batch's are encoded beside the steps of this one.
const TEXTS: usize = 2;

impl Desk<'_, '_> {
    /// Draws pictures that have all in common but texts and noise.
    pub(super) fn draw_group(
        &mut self,
        engine: &mut Engine,
        model: &Arc<ModelFolder>,
        group: &[&(usize, Job)],
        options: &BatchOptions,
    ) -> Result<()> {
        let Some((_, first)) = group.first() else { return Ok(()) };
        if let Err(error) = engine.take_loras(&first.loras, &mut |event| self.event(event)) {
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
            // What has no room at all says so when it is drawn.
            BatchSize::Auto => Planner::auto_batch_size_of(model, first, &options.setup, group.len()).unwrap_or(1),
        };
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
                engine.foresee(batches[i + 1..].iter().flatten().map(|&i| &group[i].1));
                let pictures: Vec<&(usize, Job)> = batch.iter().map(|&i| group[i]).collect();
                self.draw(engine, &pictures, shape_of[&batch[0]], n)?;
            }
        }
        Ok(())
    }

    /// Draws one batch. Where that fails, its pictures are drawn one by one, so that one does not take others along.
    fn draw(&mut self, engine: &mut Engine, pictures: &[&(usize, Job)], shape: Shape, n: usize) -> Result<()> {
        self.card_memory = engine.card_memory();
        self.drawing.get_or_insert_with(Instant::now);
        let together = Together::of_jobs(pictures.iter().map(|(_, job)| job));
        let work = engine.work_of(&together, shape, n); // a last batch that is smaller is not planned anew
        let (mut given, beside) = (0, engine.beside());
        if beside.is_some() && self.aside.is_none() {
            self.aside = Some(Aside::start()?);
        }
        let mut tell = |event| {
            if let (Event::Begin(Stage::Denoise), Some(aside), Some(beside)) = (&event, &self.aside, &beside) {
                aside.encode(TEXTS * pictures.len(), beside.clone());
            }
            self.event(event)
        };
        let result = engine.draw(&together, work, &mut tell).and_then(|(drawn, before)| {
            let part = |duration: Duration| duration.as_secs_f64() / pictures.len() as f64;
            let (encode, denoise) = (part(before.encode), part(before.denoise));
            for ((id, job), picture) in pictures.iter().zip(drawn) {
                let seconds = Seconds { encode, denoise, ..Seconds::default() };
                let order = Order { id: *id, job: job.clone(), origin: engine.origin(), picture, seconds };
                self.decode(engine, order)?;
                given += 1;
            }
            self.decode_what_had_no_memory(engine)
        });
        match result {
            Ok(()) => Ok(()),
            Err(error @ Error::Interrupted) => Err(error),
            Err(error) if pictures.len() == 1 && given == 0 => self.fail(pictures[0].0, &error.to_string()),
            Err(error) if given == pictures.len() => Err(error),
            Err(error) => {
                tracing::warn!("{} pictures at once: {error}; they are drawn one by one", pictures.len());
                pictures[given..].iter().try_for_each(|one| self.draw(engine, &[one], shape, 1))
            }
        }
    }

    /// Has a picture decoded beside the steps of the next, or decodes it at once where that cannot be.
    fn decode(&mut self, engine: &mut Engine, order: Order) -> Result<()> {
        match (&self.aside, engine.beside()) {
            (Some(aside), Some(beside)) => aside.decode(order, beside),
            _ => self.decode_here(engine, order),
        }
    }

    /// Decodes a picture with all of the engine's ways to get along with little memory.
    fn decode_here(&mut self, engine: &mut Engine, order: Order) -> Result<()> {
        engine.begin_decoding();
        let drawn = engine.decode(&order.picture, &mut |event| self.event(event))?;
        self.save(order, drawn)
    }

    fn decode_what_had_no_memory(&mut self, engine: &mut Engine) -> Result<()> {
        while let Some(order) = self.undecoded.pop() {
            let id = order.id;
            match self.decode_here(engine, order) {
                Err(error) if !matches!(error, Error::Interrupted) => self.fail(id, &error.to_string())?,
                other => other?,
            }
        }
        Ok(())
    }

    /// Waits until all that was drawn is decoded.
    pub(super) fn finish_decoding(&mut self, engine: &mut Engine) -> Result<()> {
        let Some(aside) = self.aside.take() else { return Ok(()) };
        let told = self.take(aside.finish());
        told.and(self.decode_what_had_no_memory(engine))
    }
}
