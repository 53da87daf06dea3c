//! SIGINT and SIGTERM at any time: the run stops between steps, and every file is whole or not there.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::pictures;
use crate::sandbox::{Run, Running, Sandbox};

/// When the signals come, in milliseconds after the start: drawn once, at random, more often near the start.
const DELAYS: [u64; 25] =
    [0, 1, 2, 4, 7, 11, 14, 19, 23, 30, 38, 47, 55, 68, 83, 97, 118, 141, 166, 197, 233, 271, 318, 359, 400];

/// Time goes to the denoiser: with 1,000 steps nearly every signal meets one.
const STEPS: &[&str] = &["--sampler", "euler", "--steps", "1000", "-b", "9"];
/// Time goes to the decoder and the disk: half of the signals meet a picture that is being made or saved.
const PICTURES: &[&str] = &["--steps", "1", "-b", "999"];

/// Starts a run with many steps or many pictures, in turn.
fn start(sandbox: &Sandbox, i: usize) -> Running {
    let work = if i.is_multiple_of(2) { STEPS } else { PICTURES };
    let files = ["an apple", "-o", "{index}.png", "--latents-out", "latents.safetensors"];
    sandbox.start_txt2img(&[&files, work].concat())
}

/// Expects that the run was stopped in good order. Gives whether it had begun to listen for signals.
fn check(sandbox: &Sandbox, run: &Run) -> bool {
    let names = sandbox.names();
    for name in &names {
        if name == "latents.safetensors" {
            pictures::latents_shape(&sandbox.path(name));
            assert!(run.status.success(), "latents, though the run was stopped: {run}");
        } else {
            assert!(name.ends_with(".png"), "{name} is left: {run}");
            pictures::try_read(&sandbox.path(name)).unwrap_or_else(|error| panic!("{error}: {run}"));
        }
    }
    if run.status.signal().is_some() {
        assert!(names.is_empty(), "killed by the signal, with files {names:?}: {run}");
        return false;
    }
    assert!(matches!(run.status.code(), Some(130 | 0)), "{run}");
    if run.status.code() == Some(130) {
        assert!(run.error().contains("interrupted"), "{run}");
    }
    true
}

fn stop_25_times(signal: &str) {
    let mut listened = 0;
    for (i, delay) in DELAYS.into_iter().enumerate() {
        let sandbox = Sandbox::new();
        let running = start(&sandbox, i);
        std::thread::sleep(Duration::from_millis(delay));
        running.signal(signal);
        let run = running.finish();
        listened += usize::from(check(&sandbox, &run));
    }
    println!("{signal}: {listened} of 25 runs had begun to listen");
    assert!(listened >= 5, "{listened} of 25 runs had begun to listen");
}

#[test]
fn an_interrupt_leaves_whole_files() {
    stop_25_times("INT");
}

#[test]
fn a_termination_leaves_whole_files() {
    stop_25_times("TERM");
}

/// A second signal ends the process at once, but for the file that is being written.
#[test]
fn a_second_signal_leaves_whole_files() {
    for (i, delay) in DELAYS.into_iter().enumerate().filter(|(_, delay)| *delay >= 30) {
        let sandbox = Sandbox::new();
        let running = start(&sandbox, i);
        std::thread::sleep(Duration::from_millis(delay));
        running.signal("INT");
        running.signal("INT");
        let run = running.finish();
        for name in sandbox.names() {
            assert!(name.ends_with(".png"), "{name} is left: {run}");
            pictures::read(&sandbox.path(&name));
        }
        assert!(run.status.code() == Some(130) || run.status.signal().is_some(), "{run}");
    }
}

#[test]
fn the_user_is_told_that_the_run_stops() {
    for patience in [200, 1000, 5000] {
        let sandbox = Sandbox::new();
        let running = sandbox.start_txt2img(&[&["an apple"], STEPS].concat());
        std::thread::sleep(Duration::from_millis(patience));
        running.signal("INT");
        let run = running.finish();
        assert!(run.stdout.is_empty() && sandbox.names().is_empty(), "{run}");
        if run.status.signal().is_some() {
            continue; // a busy machine: it had not begun to listen
        }
        assert_eq!(run.status.code(), Some(130), "{run}");
        assert!(run.stderr.contains("stopping after this step"), "{run}");
        return;
    }
    panic!("the run never began to listen for signals");
}
