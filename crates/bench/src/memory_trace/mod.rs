//! Memory traces: files, replay and plots.
//!
//! A file is JSON Lines. The first line has the format and its version; the events follow in order, with `ns` in
//! nanoseconds since the start of the trace:
//!
//! ```text
//! {"kiln":"memory trace","version":1,"lost":0}
//! {"ns":1200,"stage":"denoise"}
//! {"ns":1350,"alloc":17,"pool":"device","bytes":1048576,"for":"activations"}
//! {"ns":9000,"free":17}
//! ```
//!
//! `alloc` and `free` have a number that identifies an allocation in the file. `pool` is `host` (blocks of the host
//! pool, 32 KiB and more) or `device`; `for` is `weights`, `ring`, `cache`, `activations` or `workspace`. `lost` is the
//! number of events after the last line that did not fit into the recorder. Unknown objects are ignored, so that later
//! versions may add some.

mod plot;

use std::io::Write;
use std::path::{Path, PathBuf};

use kiln_files::{FileRules, PlannedFile};
use kiln_mempool::{
    Category, EventKind, MemoryEvent, MemoryRecorder, MemoryTrace, Pool, ReplayPolicy, Replayed, replay,
};
use kiln_weights::read_small_text;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const MAGIC: &str = "memory trace";
const VERSION: u32 = 1;
/// The maximum events of a recording: some thousands for each step and network, 32 bytes each; memory is allocated as
/// it is used.
const EVENTS: usize = 4 << 20;
/// The maximum size of a file to read: all events of a recording, with space for longer lines.
const MAX_BYTES: u64 = 1 << 30;

/// A line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Head {
        kiln: String,
        version: u32,
        lost: u64,
    },
    Allocated {
        ns: u64,
        alloc: u64,
        pool: String,
        bytes: u64,
        #[serde(rename = "for")]
        category: String,
    },
    Freed {
        ns: u64,
        free: u64,
    },
    Stage {
        ns: u64,
        stage: String,
    },
    /// An object of a later version.
    Other {},
}

/// A file for a memory trace.
#[derive(Debug)]
pub struct MemoryTraceFile(PlannedFile);

/// A memory trace in progress.
#[derive(Debug)]
pub struct MemoryRecording {
    file: PlannedFile,
    recorder: MemoryRecorder,
}

impl MemoryTraceFile {
    /// Plans a file at `path`; an existing file will be replaced.
    ///
    /// # Errors
    /// See [`PlannedFile`]: the folder is missing or not writable, or the name is a folder's or has another
    /// extension than `.jsonl`.
    pub fn plan(path: &Path) -> Result<Self> {
        let what = "the trace of memory";
        let rules = FileRules { field: "memory_trace", what, extensions: &["jsonl"], overwrite: true };
        Ok(Self(PlannedFile::plan(path, rules)?))
    }

    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.0
    }

    /// Starts the recording for the whole process.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Pool`] where a trace is recorded already.
    pub fn start(self) -> Result<MemoryRecording> {
        Ok(MemoryRecording { file: self.0, recorder: MemoryRecorder::start(EVENTS)? })
    }
}

impl MemoryRecording {
    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.file
    }

    /// Ends the recording and writes the file atomically.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub fn write(self) -> Result<()> {
        let trace = self.recorder.finish();
        if trace.lost > 0 {
            let lost = trace.lost;
            tracing::warn!(
                "{}: the last {lost} events are missing because the buffer was full",
                self.file.path().display()
            );
        }
        Ok(self.file.write(|to| write_trace(&trace, to))?)
    }
}

fn write_trace(trace: &MemoryTrace, mut to: impl Write) -> std::io::Result<()> {
    let mut line = |line: &Line| {
        serde_json::to_writer(&mut to, line)?;
        to.write_all(b"\n")
    };
    line(&Line::Head { kiln: MAGIC.into(), version: VERSION, lost: trace.lost })?;
    for MemoryEvent { nanos, what } in &trace.events {
        let ns = *nanos;
        line(&match what {
            EventKind::Allocated { pool, id, bytes, category } => {
                let (pool, category) = (pool.id().into(), category.id().into());
                Line::Allocated { ns, alloc: *id, pool, bytes: *bytes, category }
            }
            EventKind::Freed { id } => Line::Freed { ns, free: *id },
            EventKind::Stage { name } => Line::Stage { ns, stage: name.clone() },
        })?;
    }
    to.flush()
}

fn read_trace(path: &Path) -> Result<MemoryTrace> {
    let text = read_small_text(path, MAX_BYTES).map_err(kiln_files::read_error(path))?;
    let wrong = |line: usize, problem: String| {
        Error::from(kiln_models::Error::model(path, format!("line {}: {problem}", line + 1)))
    };
    let mut trace = MemoryTrace::default();
    for (i, line) in text.lines().enumerate() {
        let parsed = serde_json::from_str(line).map_err(|error| wrong(i, error.to_string()))?;
        if i == 0 {
            match parsed {
                Line::Head { kiln, version: VERSION, lost } if kiln == MAGIC => trace.lost = lost,
                Line::Head { kiln, version, .. } if kiln == MAGIC => {
                    return Err(wrong(
                        i,
                        format!("version {version} of the format, expected {VERSION}; use a newer Kiln"),
                    ));
                }
                _ => return Err(wrong(i, "not a memory trace; `memory_trace` of kiln txt2img writes one".into())),
            }
            continue;
        }
        let (nanos, what) = match parsed {
            Line::Allocated { ns, alloc, pool, bytes, category } => {
                let unknown = |what: &str, found: &str| wrong(i, format!("unknown {what} `{found}`"));
                let pool =
                    Pool::ALL.into_iter().find(|known| known.id() == pool).ok_or_else(|| unknown("pool", &pool))?;
                let category = Category::ALL
                    .into_iter()
                    .find(|known| known.id() == category)
                    .ok_or_else(|| unknown("use of memory", &category))?;
                (ns, EventKind::Allocated { pool, id: alloc, bytes, category })
            }
            Line::Freed { ns, free } => (ns, EventKind::Freed { id: free }),
            Line::Stage { ns, stage } => (ns, EventKind::Stage { name: stage }),
            Line::Head { .. } | Line::Other {} => continue,
        };
        trace.events.push(MemoryEvent { nanos, what });
    }
    if text.is_empty() {
        return Err(wrong(0, "the file is empty".into()));
    }
    Ok(trace)
}

/// The result of one pool's requests under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayRow {
    /// The file.
    pub file: String,
    /// The pool.
    pub pool: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// Requests.
    pub allocations: u64,
    /// System or driver calls of the policy.
    pub driver_calls: u64,
    /// The most bytes in use.
    pub peak_used: u64,
    /// Peak bytes reserved by the policy.
    pub peak_reserved: u64,
    /// Reserved bytes divided by used bytes.
    pub ratio: f64,
    /// Seconds of the replay.
    pub seconds: f64,
}

/// Replays the traces in files under every policy, each non-empty pool separately.
///
/// # Errors
/// [`kiln_engine::Error::Files`] and [`kiln_engine::Error::Models`] name the file.
pub fn replay_memory(files: &[PathBuf]) -> Result<Vec<ReplayRow>> {
    let mut rows = Vec::new();
    for file in files {
        let trace = read_trace(file)?;
        for pool in Pool::ALL {
            let requests = trace.of(pool);
            for (policy, rules) in ReplayPolicy::all() {
                let replayed = replay(&requests, rules);
                let Replayed { allocations, driver_calls, peak_used, peak_reserved, time } = replayed;
                if allocations > 0 {
                    rows.push(ReplayRow {
                        file: file.display().to_string(),
                        pool: pool.id(),
                        policy,
                        allocations,
                        driver_calls,
                        peak_used,
                        peak_reserved,
                        ratio: replayed.ratio(),
                        seconds: time.as_secs_f64(),
                    });
                }
            }
        }
    }
    Ok(rows)
}

/// Plots the trace in a file as an SVG at `to`, which is replaced if it exists.
///
/// # Errors
/// [`kiln_engine::Error::Models`] names the trace, [`kiln_engine::Error::Files`] the trace or the drawing; [`kiln_engine::Error::Request`] where the drawing
/// would replace the trace.
pub fn plot_memory(file: &Path, to: &Path) -> Result<()> {
    let rules = FileRules { field: "output", what: "the plot", extensions: &["svg"], overwrite: true };
    let drawing_file = PlannedFile::plan(to, rules)?;
    if !drawing_file.is_stream() && file.canonicalize().is_ok_and(|file| to.canonicalize().is_ok_and(|to| to == file)) {
        return Err(rules.refused(to, "another file than the trace").into());
    }
    let title = file.file_name().map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned());
    let drawing = plot::svg(&read_trace(file)?, &title);
    Ok(drawing_file.write(|to| to.write_all(drawing.as_bytes()))?)
}

#[cfg(test)]
mod tests {
    use kiln_testkit::fixtures;

    use super::*;

    fn event(nanos: u64, what: EventKind) -> MemoryEvent {
        MemoryEvent { nanos, what }
    }

    #[test]
    fn a_written_trace_is_read_back() {
        let allocated = |id, pool, category| EventKind::Allocated { pool, id, bytes: 5 << 30, category };
        let events = vec![
            event(0, EventKind::Stage { name: "load".into() }),
            event(1, allocated(7, Pool::Device, Category::Weights)),
            event(u64::MAX, allocated(8, Pool::Host, Category::Ring)),
            event(u64::MAX, EventKind::Freed { id: 7 }),
        ];
        let trace = MemoryTrace { events, lost: 3 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        write_trace(&trace, std::fs::File::create(&path).unwrap()).unwrap();
        assert_eq!(read_trace(&path).unwrap(), trace);
        let rows = replay_memory(&[path]).unwrap();
        assert!(rows.iter().all(|row| row.peak_used == 5 << 30 && row.ratio >= 1.0));
        assert_eq!(rows.iter().filter(|row| row.pool == "host").count(), ReplayPolicy::all().len());
    }

    /// Whole calls on an H200, f16: GPU requests of at least 64 KiB and 1 MiB.
    #[test]
    fn the_policy_reserves_little_more_than_is_used() {
        let files = ["sd15-call", "sdxl-call"].map(|name| fixtures("memory").join(format!("{name}.jsonl")));
        for rows in replay_memory(&files).unwrap().chunks(ReplayPolicy::all().len()) {
            let ratio = |policy: &str| rows.iter().find(|row| row.policy == policy).unwrap().ratio;
            assert!(ratio("kiln") <= 1.03, "{} times what {} used", ratio("kiln"), rows[0].file);
            assert!(ratio("kiln") < ratio("PyTorch") && ratio("planned") <= 1.001, "{rows:?}");
        }
    }

    #[test]
    fn an_invalid_trace_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let head = r#"{"kiln":"memory trace","version":1,"lost":0}"#;
        for (text, expected) in [
            (String::new(), "line 1: the file is empty"),
            ("{}".into(), "line 1: not a memory trace"),
            (head.replace("1,", "2,"), "version 2 of the format, expected 1"),
            (format!("{head}\n{{"), "line 2: "),
            (format!("{head}\n{{\"ns\":1,\"alloc\":1,\"pool\":\"disk\",\"bytes\":1,\"for\":\"ring\"}}"), "pool `disk`"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let message = read_trace(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("a.jsonl"), "{text}: {message}");
        }
        std::fs::write(&path, format!("{head}\n{{\"ns\":4,\"weather\":\"fine\"}}\n")).unwrap();
        assert_eq!(read_trace(&path).unwrap(), MemoryTrace::default());
    }
}
