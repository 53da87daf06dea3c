//! Making what is missing of a set.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kiln_mempool::ProcessMemory;

use super::desk::{Desk, Watch};
use super::events::{BatchEvent, BatchReport};
use super::groups::groups;
use super::index::write_index;
use super::plan::{BatchOptions, BatchRun, State, Todo};
use super::saver::Savers;
use super::sheet::write_sheet;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::locate::locate_model;
use crate::lora::LoraUse;
use crate::model_folder::ModelFolder;
use crate::resolved::Job;

/// The pictures of one model, ready to be drawn.
struct OfModel {
    model: Arc<ModelFolder>,
    /// With their places in the list of todos.
    jobs: Vec<(usize, Job)>,
}

impl BatchRun {
    /// Makes the pictures that are missing. `watch` is told how it goes, and may stop the run between steps: what is
    /// drawn by then is saved. A picture that cannot be made is recorded, and the others go on.
    ///
    /// # Errors
    /// Those of the journal, the index and the contact sheet, and of a device that is not there. All else is counted in
    /// the report.
    pub fn run(self, watch: &mut Watch<'_>) -> Result<BatchReport> {
        let (index, parts) = (self.own_file("index", ".jsonl"), self.own_file(".parts", ""));
        let (known, failed) = (self.made(), self.failed());
        let Self { todos, axes, journal, options } = self;
        let _ = std::fs::remove_dir_all(&parts); // what a process that was killed has left
        let journal = Arc::new(Mutex::new(journal));
        let savers = Savers::start(&journal, &parts)?;
        let mut desk = Desk::new(todos, journal, savers, watch, [known, failed]);
        let mut report = BatchReport { known, all: desk.todos.len(), ..BatchReport::default() };
        let result = desk.make(&options, &mut report);
        // Whatever happened, what is drawn is saved, and the index tells it.
        let rest = desk.savers.finish();
        let recorded = desk.record(rest);
        let _ = std::fs::remove_dir_all(&parts);
        let written = write_index(&index, &desk.todos);
        report.interrupted = matches!(result, Err(Error::Interrupted)) || matches!(recorded, Err(Error::Interrupted));
        match result.and(recorded) {
            Ok(()) | Err(Error::Interrupted) => written?,
            error => return error.map(|()| report),
        }
        (report.made, report.timings.save) = (desk.made, desk.saved);
        report.failed = desk.failed;
        if let Some(sheet) = options.sheet.as_ref().filter(|_| !report.interrupted) {
            write_sheet(sheet, &desk.todos, &axes)?;
        }
        report.timings.encode += desk.encoded;
        report.timings.decode += desk.decoded;
        report.wall = desk.start.elapsed();
        report.timings.pictures = desk.made;
        report.peak_memory = ProcessMemory::now().unwrap_or_default().peak_resident;
        Ok(report)
    }
}

impl Desk<'_, '_> {
    /// Draws all that is pending, model by model.
    fn make(&mut self, options: &BatchOptions, report: &mut BatchReport) -> Result<()> {
        options.setup.check()?;
        let models = self.resolve(options)?;
        let only_one = models.len() == 1;
        for OfModel { model, jobs } in models {
            self.tell(BatchEvent::Model(&model.name()))?;
            let groups = groups(jobs.iter().map(|(_, job)| job));
            let Some(first) = groups.first().and_then(|group| jobs.get(*group.first()?)) else { continue };
            let mut engine = match self.load(&model, options, &first.1) {
                Ok(engine) => engine,
                // What holds for every job is the run's error, not theirs.
                Err(error @ (Error::Interrupted | Error::Device(_))) => return Err(error),
                Err(error) if only_one => return Err(error),
                Err(error) => {
                    let error = error.to_string();
                    jobs.iter().try_for_each(|(id, _)| self.fail(*id, &error))?;
                    continue;
                }
            };
            let result = groups.iter().try_for_each(|group| {
                let group: Vec<&(usize, Job)> = group.iter().map(|&i| &jobs[i]).collect();
                self.draw_group(&mut engine, &model, &group, options)
            });
            let result = result.and(self.finish_decoding(&mut engine));
            let timings = engine.timings();
            let sum = &mut report.timings;
            sum.load += timings.load;
            sum.encode += timings.encode;
            sum.texts_encoded += timings.texts_encoded;
            sum.texts_known += timings.texts_known;
            sum.denoise += timings.denoise;
            sum.steps += timings.steps;
            sum.decode += timings.decode;
            result?;
        }
        Ok(())
    }

    /// Loads a model with the first job's LoRAs, or without where they are at fault: then that job will say so.
    fn load(&mut self, model: &ModelFolder, options: &BatchOptions, first: &Job) -> Result<Engine> {
        let mut load = |loras: &[LoraUse]| {
            let mut failure = None;
            let mut watch = |event| match self.event(event) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            };
            let engine = Engine::load_expecting(model.clone(), &options.setup, first, loras, &mut watch);
            match failure {
                Some(error) => Err(error),
                None => engine,
            }
        };
        match load(&first.loras) {
            Err(error) if !first.loras.is_empty() && !matches!(error, Error::Interrupted) => load(&[]),
            other => other,
        }
    }

    /// Opens the models and checks every job, before anything is loaded. What cannot be is recorded.
    fn resolve(&mut self, options: &BatchOptions) -> Result<Vec<OfModel>> {
        let mut models: Vec<(PathBuf, OfModel)> = Vec::new();
        let mut opened: HashMap<Option<PathBuf>, std::result::Result<usize, String>> = HashMap::new();
        for id in 0..self.todos.len() {
            let Todo { task, state, .. } = &self.todos[id];
            if *state != State::Pending {
                continue;
            }
            let open = |models: &mut Vec<(PathBuf, OfModel)>| -> Result<usize> {
                let path = locate_model(task.model.as_deref())?;
                // Under its own name: in the Hub's cache a file is a link to what has none.
                let whole = path.canonicalize().map_err(Error::read(&path))?;
                if let Some(known) = models.iter().position(|(other, _)| *other == whole) {
                    return Ok(known);
                }
                let model = Arc::new(ModelFolder::open_with(&path, &options.model_options)?);
                models.push((whole, OfModel { model, jobs: Vec::new() }));
                Ok(models.len() - 1)
            };
            let model = opened
                .entry(task.model.clone())
                .or_insert_with(|| open(&mut models).map_err(|error| error.to_string()))
                .clone();
            let job = model.and_then(|model| {
                let job = task.request.resolve(&models[model].1.model).map_err(|error| error.to_string())?;
                Ok((model, job))
            });
            match job {
                Ok((model, job)) => models[model].1.jobs.push((id, job)),
                Err(error) => self.fail(id, &error)?,
            }
        }
        Ok(models.into_iter().map(|(_, of_model)| of_model).filter(|of_model| !of_model.jobs.is_empty()).collect())
    }
}
