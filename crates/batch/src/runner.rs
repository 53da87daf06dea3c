//! Making what is missing of a set.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use kiln_engine::{Engine, Error, StopSign, Timings};
use kiln_files::remove_orphans;
use kiln_mempool::ProcessMemory;
use kiln_models::ModelFolder;

use super::device_report::DeviceReport;
use super::device_run::{Common, DeviceRun, Trial};
use super::events::{BatchEvent, BatchReport};
use super::groups::groups;
use super::index::write_index;
use super::known_sizes::KnownSizes;
use super::plan::BatchRun;
use super::resolve::OfModel;
use super::run_state::{RunState, Watch};
use super::saver::{SaveQueue, Savers};
use super::shared_journal::SharedJournal;
use super::sheet::write_sheet;
use super::work_queue::{Image, WorkQueue};
use crate::error::Result;

impl BatchRun {
    /// Makes the images that are missing, with an engine for each of the setups. `watch` gets the events, and may stop the run between steps: what is
    /// made by then is saved. An image that cannot be made is recorded, and the others go on.
    ///
    /// # Errors
    /// Errors of the journal, the index and the contact sheet, of a device that is not there, and [`kiln_engine::Error::Files`] where
    /// the folder takes no more files: then the run stops, and nothing is recorded of what is missing. All else is
    /// counted in the report.
    pub fn run(self, watch: &mut Watch<'_>) -> Result<BatchReport> {
        self.run_in(None, watch, Trial::NONE)
    }

    /// Runs with a model that is loaded, instead of loading that of the first setup. Jobs of other models load theirs, next to
    /// it.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn run_with(self, engine: &mut Engine, watch: &mut Watch<'_>) -> Result<BatchReport> {
        self.run_in(Some(engine), watch, Trial::NONE)
    }

    /// The same, where a test says what happens.
    fn run_in(self, loaded: Option<&mut Engine>, watch: &mut Watch<'_>, trial: Trial<'_>) -> Result<BatchReport> {
        let index = self.own_file("index", ".jsonl");
        let (known, failed) = (self.made(), self.failed());
        let Self { todos, axes, journal, models, sheet, options } = self;
        let folders: BTreeSet<&Path> = todos.iter().filter_map(|todo| todo.path.parent()).collect();
        folders.into_iter().for_each(remove_orphans); // what a process that was killed has left
        let journal = Arc::new(SharedJournal::new(journal));
        let engines = options.setups.len();
        let (savers, saving) = Savers::start(&journal, engines)?;
        let advice: BTreeSet<String> = models.iter().flat_map(OfModel::advice).collect();
        let mut state = RunState::new(todos, journal, savers, watch, [known, failed], engines);
        let shown = advice.into_iter().try_for_each(|advice| state.tell(BatchEvent::Warning(advice)));
        let mut report = BatchReport { known, all: state.todos.len(), ..BatchReport::default() };
        let queue = WorkQueue::new(models.iter().map(grouped).collect(), engines);
        let models: Vec<Arc<ModelFolder>> = models.into_iter().map(|of_model| of_model.model).collect();
        let state = parking_lot::Mutex::new(state);
        let cache = options.setups.first().and_then(|setup| setup.cache_dir.as_deref());
        let sizes = KnownSizes::new(cache);
        let common = Common { state: &state, queue: &queue, models: &models, options: &options, sizes: &sizes, trial };
        let (result, devices) = match shown {
            Ok(()) => make(&common, saving, loaded),
            Err(interrupted) => (Err(interrupted), Vec::new()),
        };
        let mut state = state.into_inner();
        state.stopping = false;
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
        tracing::debug!(lines = state.made, writes = state.journal.writes(), "the journal");
        report.timings = devices.iter().fold(Timings::default(), |mut sum, device| {
            sum += device.timings;
            sum
        });
        (report.made, report.timings.save, report.devices) = (state.made, state.saved, devices);
        report.failed = state.failed;
        if let (Some(file), Some(sheet), false) = (&sheet, &options.sheet, report.interrupted) {
            write_sheet(file, sheet.side, &state.todos, &axes)?;
        }
        report.wall = state.start.elapsed();
        report.timings.images = state.made;
        report.peak_memory = ProcessMemory::now().unwrap_or_default().peak_resident;
        Ok(report)
    }
}

/// The images of a model by what a batch has in common.
fn grouped(of_model: &OfModel) -> Vec<Vec<Image>> {
    let jobs = &of_model.jobs;
    let groups = groups(jobs.iter().map(|(_, job)| &**job));
    groups.into_iter().map(|group| group.into_iter().map(|i| jobs[i].clone()).collect()).collect()
}

/// Has an engine for each setup make what is pending: one alone on this thread, several each on its own.
fn make(
    common: &Common<'_, '_, '_>,
    saving: SaveQueue,
    mut loaded: Option<&mut Engine>,
) -> (kiln_engine::Result<()>, Vec<DeviceReport>) {
    let run = |number, setup, saving, loaded| DeviceRun::new(common, number, setup, saving, loaded).run();
    let setups = &common.options.setups;
    if let [setup] = &setups[..] {
        let (result, report) = run(0, setup, saving, loaded);
        return (result, vec![report]);
    }
    let sign = StopSign::current();
    let ended: Vec<(kiln_engine::Result<()>, DeviceReport)> = std::thread::scope(|scope| {
        let start = |(number, setup)| {
            let (saving, loaded, sign) = (saving.clone(), loaded.take(), sign.clone());
            std::thread::Builder::new()
                .name(format!("engine-{number}"))
                .spawn_scoped(scope, move || StopSign::with(sign, || run(number, setup, saving, loaded)))
                .map_err(|error| Error::Device(format!("a thread for {}: {error}", setup.device)))
        };
        let threads: Vec<_> = setups.iter().enumerate().map(start).collect();
        let end = |thread: kiln_engine::Result<ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| {
                (Err(Error::Device("the thread of an engine has failed".into())), DeviceReport::default())
            }),
            Err(error) => (Err(error), DeviceReport::default()),
        };
        threads.into_iter().map(end).collect()
    });
    let mut reports = Vec::with_capacity(ended.len());
    let mut result = Ok(());
    for (ended, report) in ended {
        reports.push(report);
        // The others were interrupted by the one that failed.
        if let (Ok(()) | Err(Error::Interrupted), Err(error)) = (&result, ended) {
            result = Err(error);
        }
    }
    (result, reports)
}

#[cfg(test)]
mod tests;
