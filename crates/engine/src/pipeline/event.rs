//! The events of a run, and how long its stages took.

use std::ops::{AddAssign, Sub};
use std::time::Duration;

use kiln_media::Rgb8Image;
use kiln_mempool::mark_stage;

use crate::error::Result;
use crate::generated_image::GeneratedImage;
pub use kiln_memory::Stage;

/// A function that is called with each event of a run. A run ends with the error that it returns.
pub type OnEvent<'a> = dyn FnMut(Event) -> Result<()> + 'a;

/// News of a run.
pub enum Event {
    /// A stage begins.
    Begin(Stage),
    /// A text is about to be encoded.
    Text {
        /// Texts that this encoder has encoded.
        done: usize,
        /// Texts that it encodes for the batch.
        total: usize,
    },
    /// The denoiser ran once; a GPU may have begun the next step.
    Step {
        /// Calls of the denoiser that are done, over all batches of the job.
        done: usize,
        /// Calls of the denoiser in the whole job.
        total: usize,
    },
    /// A preview of an image ([`Engine::preview_every`](crate::Engine::preview_every)).
    Preview {
        /// The image's number in its job, from 0.
        index: usize,
        /// Calls of the denoiser that are done, over all batches of the job.
        step: usize,
        /// One pixel for each latent.
        image: Rgb8Image,
    },
    /// Images of the first pass are enlarged.
    Enlarge {
        /// The part of the batch that is done, from 0 to 1.
        part: f32,
    },
    /// An image overflowed the type in which the autoencoder ran. It is decoded again in a wider one, and so are all
    /// that follow.
    DecodeAgain {
        /// The image's number in its job, from 0.
        index: usize,
        /// The image's seed.
        seed: u64,
        /// The type that was too narrow: `f16` or `bf16`.
        from: &'static str,
        /// The type that comes now: `bf16` or `f32`.
        to: &'static str,
    },
    /// Memory was out. The stage runs again with less of the model in memory, and so do all that follow.
    Smaller {
        /// The stage that did not fit.
        stage: Stage,
        /// How it was run, in words.
        from: String,
        /// How it runs now.
        to: String,
    },
    /// An image is done.
    Image(Box<GeneratedImage>),
}

impl Event {
    /// A stage begins, which a memory trace records too.
    pub(crate) fn begin(stage: Stage) -> Self {
        mark_stage(stage.id());
        Self::Begin(stage)
    }
}

/// How long the stages took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Loading weights.
    pub load: Duration,
    /// Encoding prompts and initial images.
    pub encode: Duration,
    /// How many texts were encoded for that.
    pub texts_encoded: usize,
    /// How many were known from before.
    pub texts_known: usize,
    /// How many came from a store that processes share.
    pub texts_shared: usize,
    /// All calls of the denoiser, with their samplers' arithmetic.
    pub denoise: Duration,
    /// How many calls of the denoiser.
    pub steps: usize,
    /// How many evaluations, of each image, had the first-block cache in place of blocks.
    pub skipped: usize,
    /// Decoding latents.
    pub decode: Duration,
    /// Compressing and writing images.
    pub save: Duration,
    /// How many images.
    pub images: usize,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.load += other.load;
        self.encode += other.encode;
        self.texts_encoded += other.texts_encoded;
        self.texts_known += other.texts_known;
        self.texts_shared += other.texts_shared;
        self.denoise += other.denoise;
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.decode += other.decode;
        self.save += other.save;
        self.images += other.images;
    }
}

impl Sub for Timings {
    type Output = Self;

    /// The difference to `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            load: self.load.saturating_sub(before.load),
            encode: self.encode.saturating_sub(before.encode),
            texts_encoded: self.texts_encoded.saturating_sub(before.texts_encoded),
            texts_known: self.texts_known.saturating_sub(before.texts_known),
            texts_shared: self.texts_shared.saturating_sub(before.texts_shared),
            denoise: self.denoise.saturating_sub(before.denoise),
            steps: self.steps.saturating_sub(before.steps),
            skipped: self.skipped.saturating_sub(before.skipped),
            decode: self.decode.saturating_sub(before.decode),
            save: self.save.saturating_sub(before.save),
            images: self.images.saturating_sub(before.images),
        }
    }
}

impl Timings {
    /// The mean time of one call of the denoiser.
    pub fn per_step(&self) -> Duration {
        self.denoise.checked_div(self.steps as u32).unwrap_or_default()
    }
}
