//! The progress display of a run: a bar on a terminal, otherwise lines, or JSON objects with `--log-format json`.

use std::time::Instant;

use kiln_engine::{Stage, Timings};
use serde_json::{Value, json};

use crate::bar::Bar;
use crate::output::print;
use crate::status::{event, is_json};
use crate::table::counted;

/// The progress of one job, on the error stream.
pub struct Progress {
    bar: Bar,
    /// When the stage began.
    stage_start: Instant,
    /// When the last step ended, or the stage began.
    last_step: Instant,
    /// When the first step ended: speed and time left exclude what is before it.
    first_step: Instant,
    /// Tenths of the job that lines have reported.
    tenths: usize,
    stage: Option<Stage>,
}

impl Progress {
    /// Nothing is shown before the first stage.
    pub fn new() -> Self {
        let bar = Bar::new("{msg:9} {bar:30} {pos}/{len}  {prefix}  left {eta}", 0);
        let now = Instant::now();
        Self { bar, stage_start: now, last_step: now, first_step: now, tenths: 0, stage: None }
    }

    /// Starts a stage.
    pub fn begin(&mut self, stage: Stage) {
        if self.stage == Some(stage) {
            return;
        }
        self.stage = Some(stage);
        self.stage_start = Instant::now();
        self.last_step = self.stage_start;
        let name = stage.doing();
        if is_json() {
            return event(json!({ "event": "stage", "stage": stage.id() }));
        }
        match &*self.bar {
            Some(bar) => bar.set_message(name),
            None if stage == Stage::Load => tell!("{name}"),
            None => {}
        }
    }

    /// Reports that `done` of `total` steps are done.
    pub fn step(&mut self, done: usize, total: usize) {
        let now = Instant::now();
        let step_seconds = (now - std::mem::replace(&mut self.last_step, now)).as_secs_f64();
        if done <= 1 {
            self.first_step = now;
            if let Some(bar) = &*self.bar {
                bar.set_length(total as u64);
                bar.reset_elapsed();
            }
        }
        let seconds = (now - self.first_step).as_secs_f64();
        let left = seconds / (done.max(2) - 1) as f64 * total.saturating_sub(done) as f64;
        if is_json() {
            // One step is not enough for an estimate.
            let eta = (done > 1).then_some(left);
            return event(json!({
                "event": "step", "step": done, "steps": total, "seconds": (now - self.stage_start).as_secs_f64(),
                "step_seconds": step_seconds, "eta_seconds": eta,
            }));
        }
        let speed = (done - 1) as f64 / seconds.max(1e-9);
        let speed = match done {
            ..=1 => String::new(),
            _ if speed >= 1.0 => format!("{speed:.2} it/s"),
            _ => format!("{:.2} s/it", 1.0 / speed),
        };
        match &*self.bar {
            Some(bar) => {
                bar.set_prefix(speed);
                bar.set_position(done as u64);
            }
            None if done * 10 / total > self.tenths => {
                self.tenths = done * 10 / total;
                tell!("step {done}/{total}  {speed}  left {left:.0} s");
            }
            None => {}
        }
    }

    /// Prints a line of the output above the bar.
    pub fn line(&self, text: &str) {
        self.bar.above(|| print(&format!("{text}\n")));
    }

    /// Prints a line about the run above the bar, on the error stream.
    pub fn tell(&self, text: &str) {
        self.bar.above(|| tell!("{text}"));
    }

    /// Prints a warning above the bar, on the error stream.
    pub fn warn(&self, text: &str) {
        self.bar.above(|| caution!("{text}"));
    }

    /// Writes to the error stream above the bar.
    pub fn above(&self, show: impl FnOnce()) {
        self.bar.above(show);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish();
    }
}

/// One line with the times of all stages.
pub fn summary(timings: &Timings) -> String {
    let seconds = |duration: std::time::Duration| format!("{:.2} s", duration.as_secs_f64());
    let Timings { texts_encoded, texts_known, steps, skipped, .. } = *timings;
    let cached = if texts_known > 0 { format!(", {texts_known} cached") } else { String::new() };
    let skipped = if skipped > 0 { format!(", {skipped} of them by the block cache") } else { String::new() };
    format!(
        "load {}, encode {} ({}{cached}), denoise {} ({}{skipped}, {:.3} s each), decode {}, save {}",
        seconds(timings.load),
        seconds(timings.encode),
        counted(texts_encoded, "prompt"),
        seconds(timings.denoise),
        counted(steps, "step"),
        timings.per_step().as_secs_f64(),
        seconds(timings.decode),
        seconds(timings.save),
    )
}

/// The times of all stages in JSON.
pub fn summary_event(all: usize, made: usize, timings: &Timings) -> Value {
    let [load, encode, denoise, decode, save] =
        [timings.load, timings.encode, timings.denoise, timings.decode, timings.save].map(|time| time.as_secs_f64());
    let stages = json!({ "load": load, "encode": encode, "denoise": denoise, "decode": decode, "save": save });
    json!({
        "event": "done", "all": all, "made": made, "steps": timings.steps, "skipped": timings.skipped, "stages": stages,
    })
}
