use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
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

/// Makes a set of nine images: five of a size, and four of another one, in batches of two.
fn run(setups: Vec<Setup>, is_lost: impl Fn(usize) -> bool + Sync) -> Run {
    let jobs = (0..9).map(|i| job(i, [32, 64][i % 2], 2)).collect();
    run_set(jobs, BatchSize::Of(2), setups, Trial { is_lost: &is_lost, ..Trial::NONE })
}

fn job(i: usize, width: usize, steps: usize) -> String {
    format!("{{\"prompt\": \"image {i}\", \"seed\": {i}, \"width\": {width}, \"height\": 32, \"steps\": {steps}}}\n")
}

/// Makes a set in a folder of its own.
fn run_set(jobs: String, batch_size: BatchSize, setups: Vec<Setup>, trial: Trial<'_>) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.jsonl");
    std::fs::write(&file, jobs).unwrap();
    let model = kiln_testkit::fixtures("models/sd1");
    let set = JobSet::new(&JobFile::read(&file, None).unwrap(), &[], Vec::new(), Some(&model)).unwrap();
    let options = BatchOptions {
        folder: folder.path().join("out"),
        shard: None,
        retry: false,
        overwrite: false,
        batch_size,
        deterministic: false,
        model_options: ModelOptions::default(),
        setups,
        sheet: None,
    };
    let (mut warnings, mut failures) = (Vec::new(), 0);
    let report = BatchRun::plan(set, options).unwrap().run_in(
        None,
        &mut |event| {
            match event {
                BatchEvent::Failed { .. } => failures += 1,
                BatchEvent::Warning(text) => warnings.push(text),
                _ => {}
            }
            ControlFlow::Continue(())
        },
        trial,
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
        let images: usize = report.devices.iter().map(|device| device.images).sum();
        let steps: usize = report.devices.iter().map(|device| device.timings.steps).sum();
        assert_eq!((images, steps), (9, report.timings.steps));
        for DeviceReport { device, images, begun, ended, .. } in &report.devices {
            assert!(device == "cpu" && (*images == 0 || *begun > 0.0) && begun <= ended, "{begun} to {ended}");
        }
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
        assert_eq!((run.files.len(), run.failures), (2 * engines, 0), "each engine saves its two images");
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

/// Images in the test of batch sizes.
const MANY: usize = 60;

/// A set of one size with a batch size that Kiln chooses, on devices for which launches count: the sizes of its batches, in
/// the order of their ends.
fn run_auto(setups: Vec<Setup>, has_memory: &(dyn Fn(usize) -> bool + Sync)) -> (Run, Vec<usize>) {
    let sizes = Mutex::new(Vec::new());
    let time = |images: usize, _| {
        sizes.lock().unwrap().push(images);
        Duration::from_millis(3000 + 100 * images as u64) // long enough for a search
    };
    let jobs = (0..MANY).map(|i| job(i, 32, 1)).collect();
    let run = run_set(jobs, BatchSize::Auto, setups, Trial { has_memory, time: &time, ..Trial::NONE });
    (run, sizes.into_inner().unwrap())
}

#[test]
fn the_batch_size_is_found_while_images_are_made_and_kept_for_the_next_run() {
    let (cache, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kept = |folder: &tempfile::TempDir| Setup { cache_dir: Some(folder.path().into()), ..setup() };
    let expected = {
        let jobs = (0..MANY).map(|i| job(i, 32, 1)).collect();
        run_set(jobs, BatchSize::Of(1), vec![kept(&cache)], Trial::NONE).files
    };
    assert_eq!(expected.len(), MANY);
    let check = |run: Run, warned: bool| {
        assert_eq!((run.report.unwrap().made, run.failures), (MANY, 0));
        assert!(run.files == expected, "other files");
        let warning = "no memory for 4 images at once; going on with 2";
        assert!(
            run.warnings.iter().all(|text| text == warning) && run.warnings.is_empty() != warned,
            "{:?}",
            run.warnings
        );
    };
    let few = |images: usize| images <= 2;

    // One, two, and four, for which there is no memory: those images are made two by two, and so are all that follow.
    let (run, sizes) = run_auto(vec![kept(&cache)], &few);
    check(run, true);
    assert_eq!(sizes, [vec![1; 4], vec![2; (MANY - 4) / 2]].concat());
    let (run, sizes) = run_auto(vec![kept(&cache)], &few);
    check(run, false);
    assert_eq!(sizes, vec![2; MANY / 2], "the second run knows it");

    // Too few images for eight at once: the rest is made in the best size that is known, and nothing is kept.
    let (run, sizes) = run_auto(vec![kept(&elsewhere)], &|_| true);
    check(run, false);
    assert_eq!(sizes, [vec![1; 4], vec![2; 4], vec![4; (MANY - 12) / 4]].concat());
    assert!(!elsewhere.path().join("batch-sizes.json").exists());

    for overlap in [Overlap::Never, Overlap::Always] {
        let (run, sizes) = run_auto(vec![Setup { overlap, ..kept(&elsewhere) }; 2], &|_| true);
        check(run, false);
        assert_eq!(sizes.iter().sum::<usize>(), MANY, "each image is made once");
    }
}
