//! Making what is missing of a set.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use kiln_engine::{Engine, Error, Job, LoraUse};
use kiln_files::remove_orphans;
use kiln_mempool::ProcessMemory;
use kiln_models::ModelFolder;

use super::events::{BatchEvent, BatchReport};
use super::groups::groups;
use super::index::write_index;
use super::plan::{BatchOptions, BatchRun};
use super::resolve::OfModel;
use super::run_state::{RunState, Watch};
use super::saver::Savers;
use super::sheet::write_sheet;
use crate::error::Result;

impl BatchRun {
    /// Makes the images that are missing. `watch` gets the events, and may stop the run between steps: what is
    /// made by then is saved. An image that cannot be made is recorded, and the others go on.
    ///
    /// # Errors
    /// Those of the journal, the index and the contact sheet, of a device that is not there, and [`kiln_engine::Error::Files`] where
    /// the folder takes no more files: then the run stops, and nothing is recorded of what is missing. All else is
    /// counted in the report.
    pub fn run(self, watch: &mut Watch<'_>) -> Result<BatchReport> {
        let index = self.own_file("index", ".jsonl");
        let (known, failed) = (self.made(), self.failed());
        let Self { todos, axes, journal, models, sheet, options } = self;
        let folders: BTreeSet<&Path> = todos.iter().filter_map(|todo| todo.path.parent()).collect();
        folders.into_iter().for_each(remove_orphans); // what a process that was killed has left
        let journal = Arc::new(Mutex::new(journal));
        let savers = Savers::start(&journal)?;
        let mut state = RunState::new(todos, journal, savers, watch, [known, failed]);
        let mut report = BatchReport { known, all: state.todos.len(), ..BatchReport::default() };
        let result = state.make(models, &options, &mut report);
        // Whatever happened, what is made is saved, and the index has it.
        let rest = state.savers.finish();
        let recorded = state.record(rest);
        let written = write_index(&index, &state.todos);
        if let Some(error) = state.stopped_by.take() {
            return Err(error);
        }
        report.interrupted = matches!(result, Err(Error::Interrupted)) || matches!(recorded, Err(Error::Interrupted));
        match result.and(recorded) {
            Ok(()) | Err(Error::Interrupted) => written?,
            Err(error) => return Err(error.into()),
        }
        (report.made, report.timings.save) = (state.made, state.saved);
        report.failed = state.failed;
        if let (Some(file), Some(sheet), false) = (&sheet, &options.sheet, report.interrupted) {
            write_sheet(file, sheet.side, &state.todos, &axes)?;
        }
        report.timings.encode += state.encoded;
        report.timings.decode += state.decoded;
        report.wall = state.start.elapsed();
        report.timings.images = state.made;
        report.peak_memory = ProcessMemory::now().unwrap_or_default().peak_resident;
        Ok(report)
    }
}

impl RunState<'_, '_> {
    /// Makes all that is pending, model by model.
    fn make(
        &mut self,
        models: Vec<OfModel>,
        options: &BatchOptions,
        report: &mut BatchReport,
    ) -> kiln_engine::Result<()> {
        let only_one = models.len() == 1;
        for OfModel { model, jobs } in models {
            self.tell(BatchEvent::Model(&model.name()))?;
            let groups = groups(jobs.iter().map(|(_, job)| &**job));
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
                let group: Vec<&(usize, Arc<Job>)> = group.iter().map(|&i| &jobs[i]).collect();
                self.run_group(&mut engine, &model, &group, options)
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
    fn load(&mut self, model: &ModelFolder, options: &BatchOptions, first: &Job) -> kiln_engine::Result<Engine> {
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
}
