//! Image sets: `kiln batch` with job files, killed and restarted.

mod refused;
mod results;
mod resumed;

use std::collections::BTreeMap;
use std::path::Path;

use kiln_testkit::fixtures;
use serde_json::Value;

use crate::sandbox::{Run, Running, Sandbox};

/// The arguments with a tiny model and fields for a short run.
fn filled(args: &[&str]) -> Vec<String> {
    let model = fixtures("models/sd1").display().to_string();
    let filling = ["batch", "-m", &model, "--device", "cpu", "-o", "out"];
    filling.iter().chain(args).map(|arg| arg.to_string()).collect()
}

fn batch(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.kiln(&filled(args))
}

/// A job of one line.
fn job(fields: &str) -> String {
    format!("{{\"width\": 64, \"height\": 64, \"steps\": 2, {fields}}}\n")
}

fn write(sandbox: &Sandbox, name: &str, text: &str) {
    std::fs::write(sandbox.path(name), text).unwrap();
}

/// The files of a folder and of its subfolders, except the set's own.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            all.extend(files(&entry.path()).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else if !name.starts_with("journal") && !name.starts_with("index") {
            all.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    all
}

fn names(sandbox: &Sandbox) -> Vec<String> {
    files(&sandbox.path("out")).into_keys().collect()
}

fn index(sandbox: &Sandbox) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path("out/index.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number of images that a run reports as generated.
fn made(run: &Run) -> usize {
    run.stdout.lines().count()
}

/// Jobs with random seeds, so that a run that loses a seed fails the test.
fn sixteen(sandbox: &Sandbox) {
    let jobs =
        (0..16).map(|i| job(&format!("\"prompt\": \"image {i}\", \"sampler\": \"euler\"")).replace(": 2,", ": 30,"));
    write(sandbox, "jobs.jsonl", &jobs.collect::<String>());
}

fn start(sandbox: &Sandbox, args: &[&str]) -> Running {
    sandbox.start_kiln(&filled(args))
}
