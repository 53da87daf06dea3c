//! SIGINT and SIGTERM at any time: the run stops between steps, and every file is complete or missing.

use std::os::unix::process::ExitStatusExt;

use crate::images;
use crate::sandbox::{Lines, Run, Running, Sandbox};

/// Most of the time is spent in the denoiser: with 1,000 steps nearly every signal arrives in one. A line is written
/// every 900 steps.
const STEPS: &[&str] = &["--sampler", "euler", "--steps", "1000", "-b", "9"];
/// Most of the time is spent in the decoder and on disk: half of the signals arrive while an image is decoded or saved.
const IMAGES: &[&str] = &["--steps", "1", "-b", "999"];

/// The event before a signal: a number of lines of a kind. The start is not awaited, because the handler may not be
/// installed yet.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The process has started.
    Start,
    /// The weights are being read.
    Loading,
    /// A number of lines about steps.
    Steps(usize),
    /// A number of saved images.
    Images(usize),
}

/// From the start until some images exist.
const MOMENTS: [Moment; 16] = [
    Moment::Start,
    Moment::Start,
    Moment::Start,
    Moment::Start,
    Moment::Loading,
    Moment::Loading,
    Moment::Steps(1),
    Moment::Images(1),
    Moment::Images(2),
    Moment::Images(3),
    Moment::Images(4),
    Moment::Images(5),
    Moment::Images(7),
    Moment::Images(11),
    Moment::Images(16),
    Moment::Images(23),
];

/// Starts a run with many steps or many images, and waits for the moment.
fn start_until(sandbox: &Sandbox, i: usize, moment: Moment) -> Running {
    let work = match moment {
        Moment::Steps(_) => STEPS,
        Moment::Images(_) => IMAGES,
        _ if i.is_multiple_of(2) => STEPS,
        _ => IMAGES,
    };
    let files = ["an apple", "-o", "{index}.png", "--latents-out", "latents.safetensors"];
    let running = sandbox.start_txt2img(&[&files, work].concat());
    match moment {
        Moment::Start => {}
        Moment::Loading => running.wait_for((Lines::Errors, "loading"), 1),
        Moment::Steps(count) => running.wait_for((Lines::Errors, "step "), count),
        Moment::Images(count) => running.wait_for((Lines::Output, ""), count),
    }
    running
}

/// Expects that the run's own handler stopped it, unless the handler was not installed yet.
fn check(sandbox: &Sandbox, run: &Run, moment: Moment) {
    let names = sandbox.names();
    for name in &names {
        assert!(name.ends_with(".png"), "{name} is left: {run}");
        images::try_read(&sandbox.path(name)).unwrap_or_else(|error| panic!("{error}: {run}"));
    }
    if run.status.signal().is_some() {
        assert!(matches!(moment, Moment::Start), "killed by the signal after {moment:?}: {run}");
        assert!(names.is_empty(), "killed by the signal, with files {names:?}: {run}");
        return;
    }
    assert_eq!(run.status.code(), Some(130), "{run}");
    assert!(run.error().contains("interrupted"), "{run}");
    if let Moment::Images(count) = moment {
        assert!(names.len() >= count && names.len() < 999, "{} images after {moment:?}: {run}", names.len());
    }
}

fn stop_at_every_moment(signal: &str) {
    for (i, moment) in MOMENTS.into_iter().enumerate() {
        let sandbox = Sandbox::new();
        let running = start_until(&sandbox, i, moment);
        running.signal(signal);
        check(&sandbox, &running.finish(), moment);
    }
}

#[test]
fn an_interrupt_leaves_whole_files() {
    stop_at_every_moment("INT");
}

#[test]
fn a_termination_leaves_whole_files() {
    stop_at_every_moment("TERM");
}

/// A second signal ends the process immediately, except while a file is written.
#[test]
fn a_second_signal_leaves_whole_files() {
    for (i, moment) in MOMENTS.into_iter().enumerate().skip(4) {
        let sandbox = Sandbox::new();
        let running = start_until(&sandbox, i, moment);
        running.signal("INT");
        running.signal("INT");
        let run = running.finish();
        for name in sandbox.names() {
            assert!(name.ends_with(".png"), "{name} is left: {run}");
            images::read(&sandbox.path(&name));
        }
        assert!(run.status.code() == Some(130) || run.status.signal().is_some(), "{run}");
    }
}

#[test]
fn an_interrupt_is_reported() {
    let sandbox = Sandbox::new();
    let running = sandbox.start_txt2img(&[&["an apple"], STEPS].concat());
    running.wait_for((Lines::Errors, "loading"), 1);
    running.signal("INT");
    let run = running.finish();
    assert!(run.stdout.is_empty() && sandbox.names().is_empty(), "{run}");
    assert_eq!(run.status.code(), Some(130), "{run}");
    assert!(run.stderr.contains("stopping; press again"), "{run}");
}
