//! `kiln pull`: downloads models from the Hugging Face Hub and shows the progress.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kiln_engine::{HubEvent, HubOptions, Result, fetched, pull};
use serde_json::json;

use crate::args::PullArgs;
use crate::interrupt;
use crate::output::print;
use crate::status::{self, is_json, is_quiet};
use crate::table::size;
use crate::terminal::shown;
use crate::tested;

/// Runs the command: the paths of the requested files are printed to the output stream, or the list of tested models.
pub fn run(args: &PullArgs) -> Result<()> {
    let Some(reference) = &args.reference else { return tested::list(args.json) };
    interrupt::listen_with_message("stopping; partial downloads are kept, and the same command resumes them");
    let options = HubOptions { offline: args.offline, dtype: args.dtype };
    let mut fetching = Fetching::new();
    let pulled = pull(reference, &args.files, &options, &mut |event| {
        fetching.hear(&event);
        interrupt::proceed()
    });
    fetching.finish();
    let pulled = pulled?;
    let all = pulled.files.len();
    tell!(
        "{all} {}, {}, {} of them downloaded now",
        if all == 1 { "file" } else { "files" },
        size(pulled.bytes),
        pulled.fetched
    );
    let paths = if args.files.is_empty() { vec![pulled.path] } else { pulled.files };
    paths.iter().for_each(|path| print(&format!("{}\n", path.display())));
    Ok(())
}

/// The file or folder of a path; a path on the Hub is downloaded if it is not in the cache.
pub fn located(path: &Path, options: &HubOptions) -> Result<std::path::PathBuf> {
    let mut fetching = Fetching::new();
    let found = fetched(path, options, &mut |event| {
        fetching.hear(&event);
        interrupt::proceed()
    });
    fetching.finish();
    Ok(found?)
}

/// The progress of downloads on the error stream: a bar on a terminal, otherwise lines.
struct Fetching {
    bar: Option<ProgressBar>,
    start: Instant,
    /// Bytes that existed at the start.
    there: u64,
    /// Tenths that lines have reported.
    tenths: u64,
    /// The file that is being downloaded, with its size.
    file: String,
}

impl Fetching {
    /// Nothing is shown until a download starts.
    fn new() -> Self {
        Self { bar: None, start: Instant::now(), there: 0, tenths: 0, file: String::new() }
    }

    fn hear(&mut self, event: &HubEvent<'_>) {
        match *event {
            HubEvent::Begin { files, total, there } if there < total => self.begin(files, total, there),
            HubEvent::File { name, size: bytes, from } => {
                self.file = format!("{name} ({})", size(bytes));
                status::event(json!({ "event": "download-file", "file": name, "bytes": bytes, "from": from }));
                match &self.bar {
                    Some(bar) => bar.set_message(shown(&self.file).into_owned()),
                    None if from > 0 => tracing::info!("{name}: {}, from {}", size(bytes), size(from)),
                    None => tracing::info!("{name}: {}", size(bytes)),
                }
            }
            HubEvent::Progress { done, total } => self.progress(done, total),
            HubEvent::Done { name, official: Some((title, file)) } => {
                tracing::info!("{name} is {file} of {title}, unmodified");
            }
            HubEvent::Retry { name, problem, pause } if pause >= Duration::from_secs(1) => {
                self.line(&format!("{name}: {problem}; retrying in {:.0} s", pause.as_secs_f64()));
            }
            HubEvent::Retry { name, problem, .. } => self.line(&format!("{name}: {problem}; retrying")),
            HubEvent::Waiting { name } => self.line(&format!("{name}: waiting for another program that downloads it")),
            _ => {}
        }
    }

    fn begin(&mut self, files: usize, total: u64, there: u64) {
        if std::io::stderr().is_terminal() && !is_json() && !is_quiet() {
            let template =
                "{wide_msg} {bar:24} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  left {eta}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total).with_style(style).with_position(there);
            bar.reset_eta();
            self.bar = Some(bar);
        } else if is_json() {
            status::event(json!({ "event": "download", "files": files, "bytes": total, "there": there }));
        } else {
            tell!("downloading {} of {} in {files} files", size(total - there), size(total));
        }
        (self.start, self.there) = (Instant::now(), there);
        self.tenths = there * 10 / total;
    }

    fn progress(&mut self, done: u64, total: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if total > 0 && done * 10 / total > self.tenths => {
                self.tenths = done * 10 / total;
                let speed = done.saturating_sub(self.there) as f64 / self.start.elapsed().as_secs_f64().max(1e-3);
                let left = (total - done) as f64 / speed.max(1.0);
                if is_json() {
                    let about =
                        json!({ "event": "download-progress", "done": done, "bytes": total, "eta_seconds": left });
                    return status::event(about);
                }
                let (done, total, speed) = (size(done), size(total), size(speed as u64));
                tell!("{done} of {total}  {speed}/s  left {left:.0} s  {}", self.file);
            }
            None => {}
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| caution!("{text}")),
            None => caution!("{text}"),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
