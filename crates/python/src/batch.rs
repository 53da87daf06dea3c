//! Image sets of a loaded engine.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_batch::{
    Assignment, Axis, BatchEvent, BatchOptions, BatchReport, BatchRun, ContactSheet, JobFile, JobFormat, JobSet,
};
use kiln_engine::{BatchSize, ModelFolder};
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::call::{Watcher, goes_on};
use crate::engine::Loaded;
use crate::error::{of_batch, refused};

/// The default of the longest side of an image on a contact sheet.
const THUMBNAIL: usize = 256;

/// Where jobs are.
pub(crate) struct Jobs<'a> {
    /// The path of a job file, or its text.
    pub(crate) text: &'a str,
    pub(crate) is_text: bool,
}

/// The options of a set.
#[derive(Default)]
pub(crate) struct Options {
    format: Option<JobFormat>,
    set: Vec<Assignment>,
    grid: Vec<Axis>,
    shard: Option<kiln_batch::Shard>,
    retry: bool,
    overwrite: bool,
    batch_size: Option<BatchSize>,
    deterministic: bool,
    contact_sheet: Option<PathBuf>,
    thumbnail: Option<usize>,
}

impl Options {
    /// Reads an object of JSON.
    pub(crate) fn read(text: &str) -> PyResult<Self> {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| refused("options", error, "an object"))?;
        let mut options = Self::default();
        for (name, value) in object {
            match name.as_str() {
                "format" => options.format = Some(parsed(&name, &value)?),
                "set" => options.set = all(&name, &value)?,
                "grid" => options.grid = all(&name, &value)?,
                "shard" => options.shard = Some(parsed(&name, &value)?),
                "retry" => options.retry = switch(&name, &value)?,
                "overwrite" => options.overwrite = switch(&name, &value)?,
                "batch_size" => options.batch_size = Some(parsed(&name, &value)?),
                "deterministic" => options.deterministic = switch(&name, &value)?,
                "contact_sheet" => options.contact_sheet = Some(text_of(&value).into()),
                "thumbnail" => options.thumbnail = Some(parsed_number(&name, &value)?),
                _ => {
                    let expected = "format, set, grid, shard, retry, overwrite, batch_size, deterministic, \
                                    contact_sheet or thumbnail";
                    return Err(refused(&name, "given", expected));
                }
            }
        }
        Ok(options)
    }

    fn of_run(self, loaded: &Loaded, folder: PathBuf) -> BatchOptions {
        let whole_grid = !self.grid.is_empty() && self.shard.is_none();
        let sheet = self.contact_sheet.or_else(|| whole_grid.then(|| folder.join("contact-sheet.png")));
        let side = self.thumbnail.unwrap_or(THUMBNAIL);
        BatchOptions {
            folder,
            shard: self.shard,
            retry: self.retry,
            overwrite: self.overwrite,
            batch_size: self.batch_size.unwrap_or(BatchSize::Auto),
            deterministic: self.deterministic,
            model_options: loaded.model_options.clone(),
            setups: vec![loaded.setup.clone()],
            sheet: sheet.map(|file| ContactSheet { file, side }),
        }
    }
}

/// A value as a user types it.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

fn parsed<T: std::str::FromStr<Err = String>>(name: &str, value: &Value) -> PyResult<T> {
    let text = text_of(value);
    text.parse().map_err(|problem: String| refused(name, &text, problem.strip_prefix("expected ").unwrap_or(&problem)))
}

fn parsed_number(name: &str, value: &Value) -> PyResult<usize> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| refused(name, value, "a whole number"))
}

fn all<T: std::str::FromStr<Err = String>>(name: &str, value: &Value) -> PyResult<Vec<T>> {
    let list = value.as_array().ok_or_else(|| refused(name, value, "a list of texts such as \"steps=30\""))?;
    list.iter().map(|value| parsed(name, value)).collect()
}

fn switch(name: &str, value: &Value) -> PyResult<bool> {
    value.as_bool().ok_or_else(|| refused(name, value, "True or False"))
}

/// Makes what is missing of a set, with the loaded model for the jobs that name no other one. Returns the report as JSON.
pub(crate) fn run(
    loaded: &mut Loaded,
    model: &ModelFolder,
    jobs: Jobs<'_>,
    folder: PathBuf,
    mut options: Options,
    on_event: Option<&Py<PyAny>>,
    watcher: &mut Watcher,
) -> PyResult<String> {
    let file = match (jobs.is_text, jobs.text) {
        (true, "") => Ok(JobFile::nothing()),
        (true, text) => JobFile::parse("jobs", text.as_bytes(), Some(options.format.unwrap_or(JobFormat::JsonLines))),
        (false, path) => JobFile::read(Path::new(path), options.format),
    };
    let file = file.map_err(of_batch)?;
    let (set, grid) = (std::mem::take(&mut options.set), options.grid.clone());
    let set = JobSet::new(&file, &set, grid, Some(model.path())).map_err(of_batch)?;
    let run = BatchRun::plan(set, options.of_run(loaded, folder)).map_err(of_batch)?;
    let journal = run.journal_path();
    let report = run.run_with(&mut loaded.engine, &mut |event| hear(event, on_event, watcher)).map_err(of_batch)?;
    if report.interrupted {
        return Err(crate::error::of_engine(kiln_engine::Error::Interrupted));
    }
    let BatchReport { all, made, known, failed, wall, .. } = report;
    let seconds = wall.as_secs_f64();
    Ok(json!({
        "all": all, "made": made, "known": known, "failed": failed, "seconds": seconds, "journal": journal,
    })
    .to_string())
}

/// Passes an event on, as an object of JSON.
fn hear(event: BatchEvent<'_>, on_event: Option<&Py<PyAny>>, watcher: &mut Watcher) -> ControlFlow<()> {
    let object = match event {
        BatchEvent::Made { number, file, seed, seconds, progress } => json!({
            "event": "made", "number": number, "file": file, "seed": seed, "seconds": seconds, "progress": progress,
        }),
        BatchEvent::Failed { number, line, error, progress } => json!({
            "event": "failed", "number": number, "line": line, "error": error, "progress": progress,
        }),
        BatchEvent::Warning(text) => {
            watcher.warn(text);
            return watcher.look();
        }
        _ => return watcher.look(),
    };
    if on_event.is_none() {
        return watcher.look();
    }
    watcher.call(|py, _| goes_on(py, on_event, (object.to_string(),)))
}
