//! The engine against diffusers: single steps and whole runs, in the type and on the device that the environment asks for.

mod cases;
mod lcm;
mod limits;
mod negative;
mod runs;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod whole;
