//! A set of mixed sizes: memory is the same after the last image as after the first of each size.

use std::ops::ControlFlow;

use kiln_batch::{BatchEvent, BatchOptions, BatchRun, JobFile, JobSet};
use kiln_engine::{BatchSize, DTypeChoice, DeviceChoice, HostPool, ModelOptions, Setup};
use kiln_testkit::fixtures;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The pool counts blocks of 128 KiB and more. How many are in use at once depends on the threads that save.
const BLOCKS: usize = 512 << 10;

#[test]
fn memory_of_a_set_is_constant() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [(32, 32), (64, 32), (40, 72), (64, 64), (96, 48)];
    // A different step count for each image makes a group of each, in the order of the file.
    let job = |i: usize| {
        let ((width, height), steps) = (sizes[i % sizes.len()], 1 + i % 3);
        format!("{{\"prompt\": \"image {i}\", \"width\": {width}, \"height\": {height}, \"steps\": {steps}}}\n")
    };
    let jobs = folder.path().join("jobs.jsonl");
    std::fs::write(&jobs, (0..300).map(job).collect::<String>()).unwrap();
    let set =
        JobSet::new(&JobFile::read(&jobs, None).unwrap(), &[], Vec::new(), Some(&fixtures("models/sd1"))).unwrap();
    let options = BatchOptions {
        folder: folder.path().join("out"),
        shard: None,
        retry: false,
        overwrite: false,
        batch_size: BatchSize::Of(2),
        deterministic: false,
        model_options: ModelOptions::default(),
        // One thread: with several, one may run its first large task, and allocate its buffer, at any image.
        setups: vec![Setup {
            device: DeviceChoice::Cpu,
            dtype: DTypeChoice::F32,
            threads: Some(1),
            ..Setup::default()
        }],
        sheet: None,
    };
    let mut kept = Vec::new();
    let report = BatchRun::plan(set, options).unwrap().run(&mut |event| {
        if let BatchEvent::Made { .. } = event {
            kept.push(HostPool::statistics().reserved);
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.made, report.failed, kept.len()), (300, 0, 300));
    // Each group has twenty images: after two thirds of the set all sizes except the last have occurred, including the
    // largest. Where the machine is busy, more images wait to be saved.
    let (before, after) = (kept[..200].iter().max().unwrap(), kept[200..].iter().max().unwrap());
    println!("at the most {before} bytes kept in the first 200 images, {after} in the last 100");
    assert!(*after <= before + BLOCKS, "{after} bytes kept, {before} before");
}
