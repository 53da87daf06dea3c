//! The `kiln` command as users run it: a process with arguments, files, streams, an exit status and signals.
//!
//! One binary for all tests, with a file for each topic. Every test has its own folder and runs the tiny models of
//! `tests/fixtures/models`, which take milliseconds. Full disks and locked folders need Linux (`ulimit`, `/dev/full`,
//! `/proc`). These tests do not compare pixels: the crates below test the numbers.
#![forbid(unsafe_code)]

mod batch;
mod calibrate;
mod checkpoints;
mod compare;
mod devices;
mod first_contact;
mod flag_values;
mod flags;
mod flow_models;
mod help;
mod hires;
mod hostile;
mod hub;
mod images;
mod img2img;
mod model_lists;
mod models;
mod output;
mod plans;
mod preprocess;
mod preview;
mod refiner;
mod sandbox;
#[cfg(unix)]
mod self_update;
#[cfg(unix)]
mod serve;
mod settings;
#[cfg(unix)]
mod signals;
mod small_model;
#[cfg(unix)]
mod streams;
mod tiny_family;
mod traces;
mod upscale;
