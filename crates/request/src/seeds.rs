//! Seeds beside the first: variations and noise of another size, as AUTOMATIC1111 has them.

use kiln_scheduler::{ImageNoise, NoiseOptions, NoisePart, RngKind, Variation};
use serde::Serialize;

use crate::job::Job;
use crate::request::Rng;

/// Options of the noise other than the seed. The default changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SeedOptions {
    /// Added to the seeds for the noise after the first; 0 draws on.
    pub eta_seed_delta: i64,
    /// The seed of the first image's second noise.
    pub subseed: u64,
    /// How much of the second noise is mixed into the first, 0 to 1. Above 0 all images have the same first noise.
    pub subseed_strength: f64,
    /// Width and height in pixels of the image whose noise this one has in its middle.
    pub resize_from: Option<(usize, usize)>,
    /// The part of the first image in the noise of a batch with one generator; the other images have those that follow. `None` if
    /// each image has a seed of its own.
    pub part: Option<NoisePart>,
}

impl Job {
    /// The noise of image `index`; a latent covers `f` pixels a side.
    pub fn noise(&self, index: usize, f: usize) -> ImageNoise {
        let SeedOptions { eta_seed_delta, subseed, subseed_strength, resize_from, part } = self.seeds;
        let mut options = NoiseOptions::default();
        options.rng = match self.rng {
            Rng::Cpu => RngKind::Cpu,
            Rng::Cuda => RngKind::Cuda,
        };
        // Two's complement: a negative delta is subtracted.
        options.eta_seed_delta = eta_seed_delta as u64;
        let seed = subseed.wrapping_add(index as u64);
        options.variation = (subseed_strength > 0.0).then_some(Variation { seed, strength: subseed_strength });
        options.resize_from = resize_from.map(|(width, height)| (height / f, width / f));
        options.part = part.and_then(|part| part.after(index));
        ImageNoise::with_options([self.seed_of(index)], options)
    }
}
