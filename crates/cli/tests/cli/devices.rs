//! Several devices: `--device cpu,cpu` runs an engine on each half of the threads, over one queue.

use std::collections::BTreeMap;

use kiln_testkit::fixtures;
use serde_json::Value;

use crate::sandbox::{Lines, Run, Sandbox};

/// Two models, groups of two sizes, and a job that fails when it is made.
const JOBS: usize = 14;

fn write_jobs(sandbox: &Sandbox) {
    let models = ["models/sd1", "models/sdxl"].map(|name| fixtures(name).display().to_string());
    let job = |i: usize| {
        let (model, width) = (&models[usize::from(i % 5 == 4)], [64, 96][i % 2]);
        format!(
            "{{\"prompt\": \"image {i}\", \"seed\": {i}, \"width\": {width}, \"height\": 64, \"steps\": 3, \"model\": {model:?}}}\n"
        )
    };
    std::fs::write(sandbox.path("jobs.jsonl"), (0..JOBS).map(job).collect::<String>()).unwrap();
}

fn args<'a>(devices: &'a str, folder: &'a str) -> Vec<&'a str> {
    vec!["batch", "jobs.jsonl", "--device", devices, "--batch-size", "2", "-o", folder]
}

/// The images of a folder, and the rows of its index without times.
fn results(sandbox: &Sandbox, folder: &str) -> (BTreeMap<String, Vec<u8>>, Vec<Value>) {
    let text = std::fs::read_to_string(sandbox.path(folder).join("index.jsonl")).unwrap();
    let mut index: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    index.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("seconds")));
    let made = index.iter().filter(|row| row["state"] == "made");
    let names = made.map(|row| row["file"].as_str().unwrap().to_string());
    let files = names.map(|name| (name.clone(), std::fs::read(sandbox.path(folder).join(&name)).unwrap())).collect();
    (files, index)
}

fn run(sandbox: &Sandbox, devices: &str, folder: &str) -> Run {
    sandbox.kiln(&args(devices, folder))
}

#[test]
fn a_set_has_the_files_of_one_device() {
    let sandbox = Sandbox::new();
    write_jobs(&sandbox);
    run(&sandbox, "cpu", "one").succeeds();
    let expected = results(&sandbox, "one");
    assert_eq!(expected.0.len(), JOBS);
    for (devices, folder) in [("cpu,cpu", "two"), ("cpu,cpu,cpu", "three")] {
        let run = run(&sandbox, devices, folder).succeeds();
        assert_eq!(run.stdout.lines().count(), JOBS, "{run}");
        assert!(results(&sandbox, folder) == expected, "{devices}: {run}");
    }
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn a_set_on_several_devices_resumes_after_kills_and_interrupts() {
    let sandbox = Sandbox::new();
    write_jobs(&sandbox);
    run(&sandbox, "cpu", "one").succeeds();
    let expected = results(&sandbox, "one");
    for (signal, images) in [("KILL", 0), ("INT", 1), ("KILL", 2), ("INT", 2)] {
        let running = sandbox.start_kiln(&args("cpu,cpu", "two"));
        running.wait_for((Lines::Output, ""), images);
        running.signal(signal);
        let run = running.finish();
        assert!(signal == "KILL" || matches!(run.status.code(), Some(0 | 130)), "{run}");
    }
    run(&sandbox, "cpu,cpu", "two").succeeds();
    assert!(results(&sandbox, "two") == expected);
}

#[test]
fn a_job_that_no_device_can_make_fails_once() {
    let sandbox = Sandbox::new();
    let job = |size: usize| {
        format!("{{\"prompt\": \"a\", \"seed\": 1, \"width\": {size}, \"height\": {size}, \"steps\": 1}}\n")
    };
    std::fs::write(sandbox.path("jobs.jsonl"), [64, 2048, 32].map(job).concat()).unwrap();
    let model = fixtures("models/sd1").display().to_string();
    let mut line = args("cpu,cpu", "out");
    line.extend(["-m", &model, "--vram-budget", "16M"]);
    let run = sandbox.kiln(&line);
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.error().contains("1 of 3 images failed"), "{run}");
    let (files, index) = results(&sandbox, "out");
    assert_eq!((files.len(), &index[1]["state"]), (2, &"failed".into()), "{run}");
    let journal = std::fs::read_to_string(sandbox.path("out/journal.jsonl")).unwrap();
    assert_eq!(journal.lines().filter(|line| line.contains("\"failed\"")).count(), 1, "{journal}");
}

/// The two halves of guided steps on the CPU twice: the files of one device.
#[test]
fn two_devices_share_the_steps_of_one_image() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    let image = |out: &str, more: &[&str]| {
        let line = ["a cat", "-m", &model, "-W", "64", "-H", "64", "--steps", "3", "--seed", "7", "-o", out];
        sandbox.txt2img(&[&line[..], more].concat())
    };
    image("one.png", &["--device", "cpu"]).succeeds();
    image("two.png", &["--device", "cpu,cpu", "--parallel", "cfg", "--threads", "2"]).succeeds();
    let files = ["one.png", "two.png"].map(|name| std::fs::read(sandbox.path(name)).unwrap());
    assert!(files[0] == files[1]);
    let alone = ["--device", "cpu,cpu", "--parallel", "cfg", "--cfg-scale", "1"];
    let run = image("alone.png", &alone).succeeds();
    assert_eq!(run.stderr.matches("`parallel` cfg shares guided steps alone").count(), 1, "{run}");
    let run = image("none.png", &["--device", "cpu", "--parallel", "cfg"]);
    assert!(run.status.code() == Some(2) && run.error().contains("--device is cpu, expected two GPUs"), "{run}");
    let cache = ["--device", "cpu,cpu", "--parallel", "cfg", "--cache", "deepcache"];
    let run = image("none.png", &cache);
    assert!(run.status.code() == Some(2) && run.error().contains("--cache is deepcache:3"), "{run}");

    write_jobs(&sandbox);
    run_set(&sandbox, &["--device", "cpu"], "set");
    run_set(&sandbox, &["--device", "cpu,cpu", "--parallel", "cfg"], "shared");
    assert!(results(&sandbox, "set") == results(&sandbox, "shared"));
    let mut both = args("cpu", "out");
    both.extend(["--per-node", "--parallel", "cfg"]);
    assert_eq!(sandbox.kiln(&both).status.code(), Some(2));
}

fn run_set(sandbox: &Sandbox, devices: &[&str], folder: &str) {
    let line = ["batch", "jobs.jsonl", "--batch-size", "2", "-o", folder];
    sandbox.kiln(&[&line[..], devices].concat()).succeeds();
}

#[test]
fn wrong_lists_of_devices_are_refused() {
    let sandbox = Sandbox::new();
    write_jobs(&sandbox);
    for (devices, message) in [
        ("cpu,", "expected auto, cpu, cuda"),
        ("cuda:1,cuda:1", "cuda:1 is named twice"),
        ("auto,cpu", "auto is one device"),
    ] {
        let run = run(&sandbox, devices, "out");
        assert!(run.status.code() == Some(2) && run.error().contains(message), "{run}");
    }
    let run = sandbox.txt2img(&["a cat", "--device", "cpu,cpu"]);
    assert!(run.status.code() == Some(2) && run.error().contains("--device is cpu,cpu, expected one device"), "{run}");
}
