//! Images of a set that are decoded in parallel with the steps of the next ones: the files are equal, also after
//! out-of-memory errors.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use kiln_batch::{BatchEvent, BatchOptions, BatchReport, BatchRun, JobFile, JobSet};
use kiln_engine::{BatchSize, DTypeChoice, DeviceChoice, HostPool, ModelOptions, Overlap, Setup, Stage};
use kiln_mempool::Faults;
use kiln_testkit::{Target, fixtures};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Images of two sizes, some in the same batch.
const JOBS: &str = "\
{\"prompt\": \"a pear\", \"seed\": 1, \"width\": 32, \"height\": 32, \"steps\": 2}
{\"prompt\": \"an apple\", \"seed\": 2, \"width\": 32, \"height\": 32, \"steps\": 2}
{\"prompt\": \"a plum\", \"seed\": 3, \"width\": 64, \"height\": 32, \"steps\": 3}
{\"prompt\": \"a fig\", \"seed\": 4, \"width\": 32, \"height\": 32, \"steps\": 2}
{\"prompt\": \"a lime\", \"seed\": 5, \"width\": 64, \"height\": 32, \"steps\": 3}
";
const PICTURES: usize = 5;
/// Allocation requests that fail, one in each run.
const TRIED: u64 = 25;

/// The result of the set.
struct Set {
    report: BatchReport,
    files: BTreeMap<String, Vec<u8>>,
    /// Images that were decoded before the next batch was started.
    in_turn: usize,
}

/// Generates the set in `folder` and returns its files; `stop` ends it at that step.
fn make(folder: &Path, overlap: Overlap, stop: Option<usize>) -> Set {
    let jobs = folder.join("jobs.jsonl");
    std::fs::write(&jobs, JOBS).unwrap();
    let set = JobSet::new(&JobFile::read(&jobs, None).unwrap(), &[], Vec::new(), Some(&fixtures("models/sd1")));
    let device = if Target::from_env().device.is_cpu() { DeviceChoice::Cpu } else { DeviceChoice::Cuda(0) };
    let options = BatchOptions {
        folder: folder.join("out"),
        shard: None,
        retry: true,
        overwrite: false,
        batch_size: BatchSize::Of(2),
        deterministic: false,
        model_options: ModelOptions::default(),
        setups: vec![Setup { device, dtype: DTypeChoice::F32, overlap, ..Setup::default() }],
        sheet: None,
    };
    let (mut steps, mut in_turn) = (0, 0);
    let report = BatchRun::plan(set.unwrap(), options).unwrap().run(&mut |event| {
        steps += usize::from(matches!(event, BatchEvent::Step { .. }));
        in_turn += usize::from(matches!(event, BatchEvent::Begin(Stage::Decode)));
        if stop.is_some_and(|stop| steps >= stop) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let is_picture = path.extension().is_some_and(|suffix| suffix == "png");
        is_picture.then(|| (path.file_name().unwrap().to_str().unwrap().to_string(), std::fs::read(&path).unwrap()))
    };
    let files = std::fs::read_dir(folder.join("out")).unwrap().filter_map(read).collect();
    Set { report: report.unwrap(), files, in_turn }
}

fn fresh(overlap: Overlap) -> Set {
    make(tempfile::tempdir().unwrap().path(), overlap, None)
}

/// One test, because fault injection applies to the whole process.
#[test]
fn files_equal_those_of_sequential_decoding() {
    let Set { report, files: expected, in_turn } = fresh(Overlap::Never);
    assert_eq!((report.made, expected.len(), in_turn), (PICTURES, PICTURES, PICTURES));
    let counter = Faults::count();
    let Set { report, files, in_turn } = fresh(Overlap::Always);
    let requests = counter.seen();
    drop(counter);
    assert_eq!((report.made, report.failed, in_turn), (PICTURES, 0, 0));
    assert!(report.timings.decode.as_secs_f64() > 0.0, "decoding was timed on its thread too");
    assert!(files == expected, "other files");

    // Stopped at any step, finished images are saved, and the next run generates the others.
    for stop in [1, 3, 5, 7] {
        let folder = tempfile::tempdir().unwrap();
        let stopped = make(folder.path(), Overlap::Always, Some(stop)).report;
        assert!(stopped.interrupted && stopped.failed == 0, "{stopped:?}");
        let Set { report: rest, files, .. } = make(folder.path(), Overlap::Always, None);
        assert_eq!((rest.made, rest.failed), (PICTURES - stopped.made, 0));
        assert!(files == expected, "stopped at step {stop}: other files");
    }

    // One failed allocation: the image is generated anyway, or the error is recorded and the others are generated.
    let mut refused = 0;
    for i in 0..TRIED {
        let n = requests * i / TRIED;
        let faults = Faults::fail_once(n);
        let folder = tempfile::tempdir().unwrap();
        let Set { report, files, .. } = make(folder.path(), Overlap::Always, None);
        drop(faults);
        assert_eq!((report.made + report.failed, files.len()), (PICTURES, report.made), "request {n} of {requests}");
        assert!(files.iter().all(|(name, file)| expected[name] == *file), "request {n} of {requests}: another image");
        refused += report.failed;
    }
    println!("of {requests} requests {TRIED} failed: {refused} images failed");
}
