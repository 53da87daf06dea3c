//! The `kiln` command as its users meet it: a process with arguments, files, streams, an exit status and signals.
//!
//! One binary for all, with a file for each concern. Every test has a folder of its own, and runs the tiny models of
//! `tests/fixtures/models`, which take milliseconds. Full disks and locked folders are Linux's (`ulimit`, `/dev/full`,
//! `/proc`). Nothing here looks at a pixel: the numbers are the business of the crates below.
#![forbid(unsafe_code)]

mod batch;
mod checkpoints;
mod flags;
mod handover;
mod help;
mod hub;
mod img2img;
mod models;
mod output;
mod pictures;
mod plans;
mod sandbox;
mod settings;
mod signals;
mod traces;
