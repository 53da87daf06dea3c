//! `kiln upscale`: images become larger.

use kiln_engine::{EnlargerEvent, UpscaleEvent, UpscaleReport, UpscaleRun, UpscalerChoice, number_text, start_threads};
use serde_json::json;

use crate::bar::Bar;
use crate::failure;
use crate::failure::Result;
use crate::interrupt;
use crate::output::print;
use crate::pull::located;
use crate::status::{is_json, object};
use crate::upscale_args::UpscaleArgs;

/// Steps of the bar of an image, and of what plain lines count.
const STEPS: u64 = 100;

/// Runs the command. Everything that can be refused is refused before weights are read.
pub fn run(mut args: UpscaleArgs) -> Result<()> {
    interrupt::listen_with_message("stopping");
    start_threads(args.threads)?;
    if matches!(UpscalerChoice::from(args.upscaler.clone()), UpscalerChoice::File(_)) {
        args.upscaler = located(&args.upscaler, &args.hub())?;
    }
    let run = UpscaleRun::plan(args.options())?;
    tell!("{}, scale {}", run.upscaler().description(), number_text(run.scale()));
    let mut shown = Shown::new(run.len(), run.is_standard_output());
    let mut on_event = |event: UpscaleEvent<'_>| {
        shown.event(event);
        interrupt::proceed()
    };
    let result = interrupt::stoppable(|| run.run(&mut on_event));
    shown.bar.finish();
    let UpscaleReport { done, load, upscale, save, .. } = result?;
    let [load, upscale, save] = [load, upscale, save].map(|time| time.as_secs_f64());
    if is_json() {
        object(json!({ "event": "done", "done": done, "load": load, "upscale": upscale, "save": save }));
    } else {
        tell!("load {load:.2} s, upscale {upscale:.2} s, save {save:.2} s");
    }
    Ok(())
}

/// Progress: a bar on a terminal, lines elsewhere, objects for programs.
struct Shown {
    bar: Bar,
    all: usize,
    /// Whether the standard output has an image, so that lines go to the error stream.
    stdout_is_taken: bool,
    /// Tenths of the image that lines have reported.
    reported: u64,
}

impl Shown {
    fn new(all: usize, stdout_is_taken: bool) -> Self {
        let bar = Bar::new("{msg} {bar:30} {pos} %  left {eta}", STEPS);
        Self { bar, all, stdout_is_taken, reported: 0 }
    }

    fn event(&mut self, event: UpscaleEvent<'_>) {
        match event {
            UpscaleEvent::Load => self.line("loading"),
            UpscaleEvent::Loaded(place) => self.line(&format!("running in {place}")),
            UpscaleEvent::Begin { number, name, from: [w, h], to: [width, height] } => {
                self.reported = 0;
                let count = if self.all > 1 { format!(" ({number} of {})", self.all) } else { String::new() };
                self.line(&format!("{name}{count}: {w}x{h} to {width}x{height}"));
                if let Some(bar) = &*self.bar {
                    bar.set_message(format!("{number}/{}", self.all));
                    bar.reset();
                }
            }
            UpscaleEvent::Enlarger(EnlargerEvent::Progress(part)) => self.progress((part * STEPS as f32) as u64),
            UpscaleEvent::Enlarger(EnlargerEvent::FewerRows(rows)) => {
                self.line(&format!("out of memory; going on with {rows} rows at once"));
            }
            UpscaleEvent::Enlarger(EnlargerEvent::Again { from }) => {
                self.line(&format!("the upscaler overflowed {from}; this image and all that follow run in f32"));
            }
            UpscaleEvent::Saved { number, path, size: [width, height] } => {
                let line = format!("{} ({width}x{height})", path.display());
                match self.stdout_is_taken {
                    true => self.line(&line),
                    false => self.bar.above(|| print(&format!("{line}\n"))),
                }
                if is_json() {
                    object(json!({
                        "event": "saved", "number": number, "file": path, "width": width, "height": height,
                    }));
                }
            }
            UpscaleEvent::Failed { number, name, error } => {
                let error = failure::message(error);
                if is_json() {
                    object(json!({ "event": "failed", "number": number, "image": name, "error": error }));
                } else {
                    self.line(&format!("image {number} ({name}) failed: {error}"));
                }
            }
        }
    }

    fn progress(&mut self, percent: u64) {
        match &*self.bar {
            Some(bar) => bar.set_position(percent),
            None if percent / 10 > self.reported => {
                self.reported = percent / 10;
                if percent < STEPS {
                    tell!("{percent} %");
                }
            }
            None => {}
        }
    }

    fn line(&self, text: &str) {
        self.bar.above(|| tell!("{text}"));
    }
}
