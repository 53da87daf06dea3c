//! The reference images of a batch, as far as memory depends on them.

use kiln_request::Job;

use super::Workload;

/// The reference images of each image, as if all had the largest sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReferenceWork {
    /// How many.
    pub count: usize,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Width and height in which the text encoder sees each; 0 if it sees none.
    pub text: (usize, usize),
}

impl ReferenceWork {
    /// The reference images of a job, of those that the denoiser takes as tokens.
    pub(crate) fn of(job: &Job) -> Self {
        let references = job.token_references();
        let sizes = || references.iter().map(|reference| reference.image.size());
        let (width, height) = (sizes().map(|(width, _)| width).max(), sizes().map(|(_, height)| height).max());
        let texts = || references.iter().filter_map(|reference| Some(reference.text.as_ref()?.size()));
        let (wide, high) = (texts().map(|(width, _)| width).max(), texts().map(|(_, height)| height).max());
        let text = (wide.unwrap_or(0), high.unwrap_or(0));
        Self { count: references.len(), width: width.unwrap_or(0), height: height.unwrap_or(0), text }
    }

    /// The images that the text encoder sees with each text: how many, and their size.
    pub(super) fn in_text(self) -> (usize, (usize, usize)) {
        (if self.text == (0, 0) { 0 } else { self.count }, self.text)
    }

    /// The work that has room for both.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            width: self.width.max(other.width),
            height: self.height.max(other.height),
            text: (self.text.0.max(other.text.0), self.text.1.max(other.text.1)),
        }
    }
}

impl Workload {
    /// The size of the largest image that is encoded, if those besides reference images have `size`, width and height.
    pub(super) fn largest_input(&self, size: (usize, usize)) -> (usize, usize) {
        let ReferenceWork { width, height, .. } = self.references;
        if width * height > size.0 * size.1 { (width, height) } else { size }
    }
}
