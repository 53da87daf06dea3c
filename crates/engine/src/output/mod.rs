//! Files that a run writes: images, latents, reports, traces, drawings.
//!
//! [`PlannedFile`] has the rules that all of them follow: what is checked before the run, and that a file appears whole
//! or not at all. [`Output`] gives the images of a job their names.

mod images;

pub use images::Output;
