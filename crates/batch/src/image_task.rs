//! One image of a set on its way through the stages: latents, then pixels, then a file.

use std::path::PathBuf;
use std::sync::Arc;

use kiln_engine::Job;
use kiln_engine::pipeline::{DecodedImage, Origin};

use super::journal::Seconds;

/// An image of a set with what there is of it so far, `S`: its latents ([`kiln_engine::pipeline::Latents`]), its pixels
/// ([`DecodedImage`]), or its pixels with the file that they become ([`Unsaved`]).
pub(crate) struct ImageTask<S> {
    /// The image's place in the list of the set's images.
    pub(crate) id: usize,
    pub(crate) job: Arc<Job>,
    pub(crate) origin: Arc<Origin>,
    /// How long it took so far.
    pub(crate) seconds: Seconds,
    pub(crate) content: S,
}

/// Pixels, and the file that they become.
pub(crate) struct Unsaved {
    pub(crate) image: DecodedImage,
    /// The image's key in the journal.
    pub(crate) key: String,
    pub(crate) path: PathBuf,
    /// Whether a file that is there may be replaced.
    pub(crate) replace: bool,
}

impl<S> ImageTask<S> {
    /// Moves the image to its next stage, and returns its content of the stage before.
    pub(crate) fn with<T>(self, content: T) -> (ImageTask<T>, S) {
        let Self { id, job, origin, seconds, content: before } = self;
        (ImageTask { id, job, origin, seconds, content }, before)
    }
}
