//! Files that a run writes: images, latents, reports, traces, drawings.
//!
//! [`PlannedFile`] has the rules that all of them follow: what is checked before the run, and that a file appears whole
//! or not at all. [`Output`] gives the images of a job their names.

mod images;
mod planned;
mod temporary;

pub use images::Output;
pub(crate) use images::png;
pub use planned::PlannedFile;
pub(crate) use planned::{FileRules, check_folder};
pub(crate) use temporary::{
    folder_of, persist, persist_new, remove_orphans, temporary_beside, temporary_folder_beside,
};
