//! Output files of a run: images, latents, reports, traces, plots.
//!
//! [`PlannedFile`] has the rules for all of them: the checks before the run, and the atomic write. [`Output`] names the
//! images of a job.

mod images;

pub use images::Output;
