//! Making what is missing of a set.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use kiln_engine::{Engine, Error, Timings};
use kiln_files::remove_orphans;
use kiln_mempool::ProcessMemory;
use kiln_models::ModelFolder;

use super::device_run::{Common, DeviceRun};
use super::events::{BatchEvent, BatchReport};
use super::groups::groups;
use super::index::write_index;
use super::plan::BatchRun;
use super::resolve::OfModel;
use super::run_state::{RunState, Watch};
use super::saver::{SaveQueue, Savers};
use super::sheet::write_sheet;
use super::work_queue::{Image, WorkQueue};
use crate::error::Result;

impl BatchRun {
    /// Makes the images that are missing, with an engine for each of the setups. `watch` gets the events, and may stop the run between steps: what is
    /// made by then is saved. An image that cannot be made is recorded, and the others go on.
    ///
    /// # Errors
    /// Those of the journal, the index and the contact sheet, of a device that is not there, and [`kiln_engine::Error::Files`] where
    /// the folder takes no more files: then the run stops, and nothing is recorded of what is missing. All else is
    /// counted in the report.
    pub fn run(self, watch: &mut Watch<'_>) -> Result<BatchReport> {
        self.run_unless(None, watch, &|_| false)
    }

    /// The same with a model that is loaded, instead of the one that the first setup loads. Jobs of other models load theirs, next to it.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_with(self, engine: &mut Engine, watch: &mut Watch<'_>) -> Result<BatchReport> {
        self.run_unless(Some(engine), watch, &|_| false)
    }

    /// The same, where a test has the devices of some engines lost.
    fn run_unless(
        self,
        loaded: Option<&mut Engine>,
        watch: &mut Watch<'_>,
        is_lost: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchReport> {
        let index = self.own_file("index", ".jsonl");
        let (known, failed) = (self.made(), self.failed());
        let Self { todos, axes, journal, models, sheet, options } = self;
        let folders: BTreeSet<&Path> = todos.iter().filter_map(|todo| todo.path.parent()).collect();
        folders.into_iter().for_each(remove_orphans); // what a process that was killed has left
        let journal = Arc::new(Mutex::new(journal));
        let engines = options.setups.len();
        let (savers, saving) = Savers::start(&journal, engines)?;
        let advice: BTreeSet<String> = models.iter().flat_map(OfModel::advice).collect();
        let mut state = RunState::new(todos, journal, savers, watch, [known, failed], engines);
        let shown = advice.into_iter().try_for_each(|advice| state.tell(BatchEvent::Warning(advice)));
        let mut report = BatchReport { known, all: state.todos.len(), ..BatchReport::default() };
        let queue = WorkQueue::new(models.iter().map(grouped).collect(), engines);
        let models: Vec<Arc<ModelFolder>> = models.into_iter().map(|of_model| of_model.model).collect();
        let state = parking_lot::Mutex::new(state);
        let common = Common { state: &state, queue: &queue, models: &models, options: &options, is_lost };
        let (result, timings) = match shown {
            Ok(()) => make(&common, saving, loaded),
            Err(interrupted) => (Err(interrupted), Timings::default()),
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
        (report.made, report.timings) = (state.made, Timings { save: state.saved, ..timings });
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
) -> (kiln_engine::Result<()>, Timings) {
    let run = |number, setup, saving, loaded| DeviceRun::new(common, number, setup, saving, loaded).run();
    let setups = &common.options.setups;
    if let [setup] = &setups[..] {
        return run(0, setup, saving, loaded);
    }
    let ended: Vec<(kiln_engine::Result<()>, Timings)> = std::thread::scope(|scope| {
        let start = |(number, setup)| {
            let (saving, loaded) = (saving.clone(), loaded.take());
            std::thread::Builder::new()
                .name(format!("engine-{number}"))
                .spawn_scoped(scope, move || run(number, setup, saving, loaded))
                .map_err(|error| Error::Device(format!("a thread for {}: {error}", setup.device)))
        };
        let threads: Vec<_> = setups.iter().enumerate().map(start).collect();
        let end = |thread: kiln_engine::Result<ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| {
                (Err(Error::Device("the thread of an engine has failed".into())), Timings::default())
            }),
            Err(error) => (Err(error), Timings::default()),
        };
        threads.into_iter().map(end).collect()
    });
    let mut timings = Timings::default();
    let mut result = Ok(());
    for (ended, own) in ended {
        timings += own;
        // The others were interrupted by the one that failed.
        if let (Ok(()) | Err(Error::Interrupted), Err(error)) = (&result, ended) {
            result = Err(error);
        }
    }
    (result, timings)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, PoisonError};
    use std::time::Duration;

    use kiln_engine::{BatchSize, ByteSize, DTypeChoice, DeviceChoice, MemoryOptions, ModelOptions, Overlap, Setup};

    use super::*;
    use crate::{BatchEvent, BatchOptions, JobFile, JobSet};

    /// Waiting longer than this is a failure: every engine gets there in a moment.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// The result of a run.
    struct Run {
        report: Result<BatchReport>,
        files: BTreeMap<String, Vec<u8>>,
        warnings: Vec<String>,
        /// How many images failed.
        failures: usize,
    }

    /// How often each engine asked whether its device is lost: once before each batch, and more often once it is lost.
    #[derive(Default)]
    struct Asked([AtomicUsize; 3]);

    impl Asked {
        /// How often this engine has asked before.
        fn before(&self, engine: usize) -> usize {
            self.0[engine].fetch_add(1, Ordering::Relaxed)
        }
    }

    /// Has threads wait until so many others have come.
    struct Gate {
        missing: Mutex<usize>,
        opened: Condvar,
    }

    impl Gate {
        fn new(missing: usize) -> Self {
            Self { missing: Mutex::new(missing), opened: Condvar::new() }
        }

        fn come(&self) {
            let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
            *missing = missing.checked_sub(1).expect("more have come than are waited for");
            self.opened.notify_all();
        }

        fn wait(&self) {
            let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.opened.wait_timeout_while(missing, PATIENCE, |missing| *missing > 0);
            let (missing, _) = waited.unwrap_or_else(PoisonError::into_inner);
            assert_eq!(*missing, 0, "not all have come");
        }
    }

    fn setup() -> Setup {
        Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, threads: Some(1), ..Setup::default() }
    }

    fn overlapping(overlap: Overlap) -> Setup {
        Setup { overlap, ..setup() }
    }

    /// Makes a set of nine images in a folder of its own: five of a size, and four of another one, in batches of two.
    fn run(setups: Vec<Setup>, is_lost: impl Fn(usize) -> bool + Sync) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let job = |i: usize| {
            let width = [32, 64][i % 2];
            format!("{{\"prompt\": \"image {i}\", \"seed\": {i}, \"width\": {width}, \"height\": 32, \"steps\": 2}}\n")
        };
        let jobs = folder.path().join("jobs.jsonl");
        std::fs::write(&jobs, (0..9).map(job).collect::<String>()).unwrap();
        let model = kiln_testkit::fixtures("models/sd1");
        let set = JobSet::new(&JobFile::read(&jobs, None).unwrap(), &[], Vec::new(), Some(&model)).unwrap();
        let options = BatchOptions {
            folder: folder.path().join("out"),
            shard: None,
            retry: false,
            overwrite: false,
            batch_size: BatchSize::Of(2),
            deterministic: false,
            model_options: ModelOptions::default(),
            setups,
            sheet: None,
        };
        let (mut warnings, mut failures) = (Vec::new(), 0);
        let report = BatchRun::plan(set, options).unwrap().run_unless(
            None,
            &mut |event| {
                match event {
                    BatchEvent::Failed { .. } => failures += 1,
                    BatchEvent::Warning(text) => warnings.push(text),
                    _ => {}
                }
                ControlFlow::Continue(())
            },
            &is_lost,
        );
        let entries = std::fs::read_dir(folder.path().join("out")).unwrap().map(|entry| entry.unwrap().path());
        let images = entries.filter(|path| path.extension().is_some_and(|ending| ending == "png"));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
        let files = images.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect();
        Run { report, files, warnings, failures }
    }

    /// The files of one engine, which makes all.
    fn expected() -> BTreeMap<String, Vec<u8>> {
        let Run { report, files, .. } = run(vec![setup()], |_| false);
        assert_eq!((report.unwrap().made, files.len()), (9, 9));
        files
    }

    #[test]
    fn several_engines_make_the_files_of_one() {
        let expected = expected();
        for setups in [vec![setup(); 2], vec![setup(); 4], vec![overlapping(Overlap::Always); 2]] {
            let Run { report, files, failures, .. } = run(setups, |_| false);
            let report = report.unwrap();
            assert_eq!((report.made, report.failed, failures, report.interrupted), (9, 0, 0, false));
            assert!(files == expected && report.timings.steps > 0);
        }
    }

    #[test]
    fn the_images_of_a_lost_device_go_to_the_others() {
        let expected = expected();
        for overlap in [Overlap::Never, Overlap::Always] {
            // The second device is lost before it has made anything, the third one after a batch. The first one goes on when both
            // are lost: until then it holds one batch, so that there is work for the others.
            let (asked, both_lost) = (Asked::default(), Gate::new(2));
            let run = run(vec![overlapping(overlap); 3], |engine| {
                let before = asked.before(engine);
                let lost_at = [usize::MAX, 0, 1][engine];
                match engine {
                    0 => both_lost.wait(),
                    _ if before == lost_at => both_lost.come(),
                    _ => {}
                }
                before >= lost_at
            });
            let report = run.report.unwrap();
            assert_eq!((report.made, report.failed, run.failures), (9, 0, 0));
            assert!(run.files == expected, "other files");
            assert_eq!(run.warnings.len(), 2, "one for each lost device: {:?}", run.warnings);
            assert!(run.warnings.iter().all(|text| text.contains("does not work any more")), "{:?}", run.warnings);
        }
    }

    #[test]
    fn a_run_whose_devices_are_all_lost_ends_and_blames_no_image() {
        let expected = expected();
        for engines in [1, 2] {
            // Each device makes a batch and is lost at its second one.
            let asked = Asked::default();
            let run = run(vec![setup(); engines], |engine| asked.before(engine) > 0);
            let message = run.report.unwrap_err().to_string();
            assert!(message.contains("does not work any more"), "{message}");
            assert_eq!((run.files.len(), run.failures), (2 * engines, 0), "what was made is saved");
            assert!(run.files.iter().all(|(name, file)| expected[name] == *file), "other files");
        }
    }

    #[test]
    fn images_without_room_on_one_device_are_made_by_another() {
        let expected = expected();
        let memory = MemoryOptions { budget: Some(ByteSize(64 << 10)), ..MemoryOptions::default() };
        let Run { report, files, .. } = run(vec![Setup { memory: memory.clone(), ..setup() }, setup()], |_| false);
        let report = report.unwrap();
        assert!((report.made, report.failed) == (9, 0) && files == expected, "{report:?}");
        let Run { report, files, failures, .. } = run(vec![Setup { memory, ..setup() }; 2], |_| false);
        assert_eq!((report.unwrap().failed, failures, files.len()), (9, 9, 0), "there is no room anywhere");
    }
}
