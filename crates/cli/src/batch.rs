//! `kiln batch`: generates folders of images from job files.

use std::time::{Duration, Instant};

use kiln_batch::{
    BatchEvent, BatchProgress, BatchReport, BatchRun, Checked, DeviceReport, Error, JobFile, JobSet, NotDownloaded,
    Waits,
};
use kiln_engine::{ModelFolder, Timings, locate_model};
use kiln_request::job_fields;
use serde_json::json;

use crate::bar::Bar;
use crate::batch_args::BatchArgs;
use crate::failure::{FIELDS_HINT, Result};
use crate::flags::in_job;
use crate::interrupt;
use crate::output::print;
use crate::progress::summary;
use crate::pull::located;
use crate::small_model;
use crate::status::{is_json, object};
use crate::table::{counted, size, table};

/// The minimum time between progress lines if the error stream is not a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Runs the command. The job file, the names of all images and every job are checked before anything is loaded.
pub fn run(mut args: BatchArgs) -> Result<()> {
    if args.fields {
        print(&fields());
        return Ok(());
    }
    interrupt::listen();
    let file = match &args.jobs {
        Some(path) => JobFile::read(path, args.format)?,
        None => JobFile::nothing(),
    };
    args.run.start_threads()?;
    let set = JobSet::with_problems(&file, &args.set, args.grid.clone(), args.run.model.as_deref())?;
    if args.check {
        return check(&set, &args);
    }
    // Nothing is downloaded for a set that will be refused.
    if !set.has_problems() {
        if args.run.model.is_none() && set.models().is_empty() {
            let model = locate_model(None).map_err(kiln_engine::Error::from)?;
            small_model::announce(&ModelFolder::open(&model)?);
        }
        args.run.fetch(&mut [], &mut [], &mut [])?;
        for model in set.models().into_iter().chain(set.refiners()) {
            located(model, &args.run.hub())?;
        }
    }
    let whole = set.len();
    let run = BatchRun::plan(set, args.options()?)?;
    let (all, made, failed) = (run.all(), run.made(), run.failed());
    let part = args.shard.map_or(String::new(), |_| format!(" of {whole}"));
    tell!("{}{part}: {made} done, {failed} failed previously", counted(all, "image"));
    let mut shown = Shown::new(all);
    let journal = run.journal_path();
    let mut on_event = |event: BatchEvent<'_>| {
        shown.event(event);
        interrupt::proceed()
    };
    let report = interrupt::stoppable(|| run.run(&mut on_event));
    shown.bar.finish();
    let report = report?;
    print_report(&report);
    match report {
        BatchReport { interrupted: true, .. } => Err(kiln_engine::Error::Interrupted.into()),
        BatchReport { failed, all, .. } if failed > 0 => Err(Error::JobsFailed { failed, all, journal }.into()),
        _ => Ok(()),
    }
}

/// The fields of a job, a line for each: its names, and what it does.
fn fields() -> String {
    let row = |(name, others, help): (&str, Vec<&str>, String)| {
        let names = std::iter::once(name).chain(others).collect::<Vec<_>>().join(", ");
        vec![names, help]
    };
    table(&job_fields().into_iter().map(row).collect::<Vec<_>>(), 2)
}

/// Reports all errors of a set.
fn check(set: &JobSet, args: &BatchArgs) -> Result<()> {
    let Checked { problems, images, pending, not_downloaded } = BatchRun::check(set, &args.options()?)?;
    for NotDownloaded { model, line, images, .. } in &not_downloaded {
        let (file, model, images) = (problems.file(), model.display(), counted(*images, "image"));
        caution!("{file}:{line}: {model} is not downloaded; {images} could not be checked against it");
    }
    for problem in problems.iter() {
        let text = in_job(&problem.text);
        match is_json() {
            true => object(json!({"event": "problem", "file": problems.file(), "line": problem.line, "error": text})),
            false => tell!("{}:{}: {text}", problems.file(), problem.line),
        }
    }
    if !is_json() && problems.iter().any(|problem| problem.text.contains("unknown field `")) {
        tell!("{FIELDS_HINT}");
    }
    match problems.len() {
        0 => {
            tell!("{}: no errors, {pending} to generate", counted(images, "image"));
            Ok(())
        }
        _ => Err(Error::Refused { file: problems.file().into(), errors: problems.len() }.into()),
    }
}

/// The progress display: a bar on a terminal, otherwise lines, or JSON objects with `--log-format json`.
struct Shown {
    bar: Bar,
    last_line: Instant,
}

impl Shown {
    fn new(all: usize) -> Self {
        let bar = Bar::new("{msg:9} {bar:24} {pos}/{len}  {prefix}", all as u64);
        Self { bar, last_line: Instant::now() }
    }

    fn event(&mut self, event: BatchEvent<'_>) {
        match event {
            BatchEvent::Model(name) => self.bar.above(|| tell!("model {name}")),
            BatchEvent::Begin(stage) => {
                if let Some(bar) = &*self.bar {
                    bar.set_message(stage.doing());
                }
            }
            BatchEvent::Warning(text) => self.bar.above(|| caution!("{}", in_job(&text))),
            BatchEvent::Made { number, file, seed, seconds, progress } => {
                self.bar.above(|| print(&format!("{}\n", file.display())));
                if is_json() {
                    object(json!({
                        "event": "made", "number": number, "file": file, "seed": seed, "seconds": seconds,
                        "progress": progress,
                    }));
                }
                self.progress(&progress);
            }
            BatchEvent::Failed { number, line, error, progress } => {
                if is_json() {
                    object(json!({
                        "event": "failed", "number": number, "line": line, "error": error, "progress": progress,
                    }));
                } else {
                    self.bar.above(|| tell!("image {number} (line {line}) failed: {}", in_job(error)));
                }
                self.progress(&progress);
            }
            _ => {}
        }
    }

    fn progress(&mut self, progress: &BatchProgress) {
        match &*self.bar {
            Some(bar) => {
                bar.set_position((progress.done + progress.failed) as u64);
                bar.set_prefix(speed(progress));
            }
            None if !is_json() && self.last_line.elapsed() >= BETWEEN_LINES => {
                self.last_line = Instant::now();
                tell!("{}/{}  {}", progress.done, progress.all, speed(progress));
            }
            None => {}
        }
    }
}

/// The speed of a set, the remaining time, and the memory in use.
fn speed(progress: &BatchProgress) -> String {
    let BatchProgress { images_per_second, seconds_left, memory, card_memory, .. } = *progress;
    let gpu = card_memory.map_or(String::new(), |bytes| format!(", GPU {}", size(bytes)));
    let left = match seconds_left {
        ..120.0 => format!("{seconds_left:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds_left / 60.0),
        _ => format!("{:.1} h", seconds_left / 3600.0),
    };
    format!("{}  left {left}  memory {}{gpu}", rate(images_per_second), size(memory))
}

/// A speed with two digits at least, whatever an image takes.
fn rate(images_per_second: f64) -> String {
    match images_per_second {
        0.1.. => format!("{images_per_second:.2} images/s"),
        _ if images_per_second > 0.0 => format!("{:.1} s/image", 1.0 / images_per_second),
        _ => "no image yet".into(),
    }
}

/// The times of stages in JSON.
fn stages(timings: &Timings) -> serde_json::Value {
    let Timings { load, encode, denoise, decode, save, .. } = timings;
    let [load, encode, denoise, decode, save] = [load, encode, denoise, decode, save].map(Duration::as_secs_f64);
    json!({"load": load, "encode": encode, "denoise": denoise, "decode": decode, "save": save})
}

/// The report of a device in JSON.
fn device(report: &DeviceReport) -> serde_json::Value {
    let DeviceReport { device, images, begun, ended, timings, waits } = report;
    let Waits { state, decoding, saving, others } = waits;
    json!({
        "device": device, "images": images, "begun": begun, "ended": ended, "stages": stages(timings),
        "waited": {"state": state, "decoding": decoding, "saving": saving, "others": others},
    })
}

fn print_report(report: &BatchReport) {
    let BatchReport { all, made, known, failed, interrupted, wall, timings, peak_memory, devices } = report;
    let seconds = wall.as_secs_f64();
    if is_json() {
        object(json!({
            "event": if *interrupted { "interrupted" } else { "done" },
            "all": all, "made": made, "known": known, "failed": failed, "seconds": seconds,
            "peak_memory": peak_memory,
            "stages": stages(timings),
            "devices": devices.iter().map(device).collect::<Vec<_>>(),
        }));
        return;
    }
    let peak = size(*peak_memory);
    let speed = if *made > 0 { format!(" ({})", rate(*made as f64 / seconds.max(1e-9))) } else { String::new() };
    tell!("{made} generated, {known} skipped (exist), {failed} failed, in {seconds:.2} s{speed}, peak memory {peak}");
    if *made > 0 {
        tell!("{}", summary(timings));
    }
    if devices.len() > 1 {
        for DeviceReport { device, images, begun, ended, waits, .. } in devices {
            let Waits { state, decoding, saving, others } = waits;
            tell!(
                "{device}: {} from {begun:.2} to {ended:.2} s; waited {decoding:.2} s for decoding, {saving:.2} s for \
                 saving, {:.2} s for other devices",
                counted(*images, "image"),
                state + others
            );
        }
    }
}
