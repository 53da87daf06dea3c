//! Noise for a batch of images.

mod variation;

use crate::brownian::BrownianTree;
use crate::rng::{Rng, RngKind};
use crate::{CpuRng, Error, Result};
use candle_core::{Device, Tensor};
use variation::{paste, slerp};

/// Where samplers take fresh noise from.
pub trait NoiseSource {
    /// Unit normal noise of the shape, dtype and device of `like` (n, c, h, w).
    fn sample(&mut self, like: &Tensor) -> Result<Tensor>;

    /// Unit normal noise for the step from one noise level to another, of a path over the noise levels of
    /// `range` (least, largest) that does not depend on the steps. A source without paths draws.
    fn along_path(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        let _ = (range, from, to);
        self.sample(like)
    }
}

/// How the noise of images is drawn, beside their seeds. The default is PyTorch's CPU generator alone.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct NoiseOptions {
    /// Whose generator.
    pub rng: RngKind,
    /// Added to the seeds for the noise after the first (AUTOMATIC1111's ENSD); 0 draws on.
    pub eta_seed_delta: u64,
    /// A second noise that is mixed into the first.
    pub variation: Option<Variation>,
    /// The height and width of the latents that the first noise is drawn for. It lies in the middle of a
    /// picture of another size, which then has a similar composition.
    pub resize_from: Option<(usize, usize)>,
}

/// A second noise, mixed into the first by spherical interpolation: a similar picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variation {
    /// The seed of the first image's second noise; the next ones count on.
    pub seed: u64,
    /// How much of it: 0 is none, 1 nothing else.
    pub strength: f64,
}

/// One generator for each image of a batch: image i of a request is the picture that seed + i gives
/// alone (diffusers: a list of generators).
#[derive(Debug, Clone)]
pub struct ImageNoise {
    seeds: Vec<u64>,
    options: NoiseOptions,
    generators: Vec<Rng>,
    /// One for each image, once a sampler asked for a path.
    paths: Vec<BrownianTree>,
}

impl ImageNoise {
    /// Generators with the seeds `seed`, `seed + 1`, ..., wrapping.
    pub fn new(seed: u64, images: usize) -> Self {
        Self::from_seeds((0..images as u64).map(|i| seed.wrapping_add(i)))
    }

    /// Generators with these seeds.
    pub fn from_seeds(seeds: impl IntoIterator<Item = u64>) -> Self {
        Self::with_options(seeds, NoiseOptions::default())
    }

    /// Generators with these seeds, which draw as `options` say.
    pub fn with_options(seeds: impl IntoIterator<Item = u64>, options: NoiseOptions) -> Self {
        let seeds: Vec<u64> = seeds.into_iter().collect();
        let generators = seeds.iter().map(|&seed| Rng::new(options.rng, seed)).collect();
        Self { seeds, options, generators, paths: Vec::new() }
    }

    /// The latents at the start, before they are scaled: (n, c, h, w) in f32 on the CPU.
    pub fn latents(&mut self, shape: (usize, usize, usize)) -> Result<Tensor> {
        let (c, h, w) = shape;
        let values: Vec<f32> = (0..self.seeds.len()).flat_map(|image| self.first(image, shape)).collect();
        if self.options.eta_seed_delta != 0 {
            let seeds = self.seeds.iter().map(|seed| seed.wrapping_add(self.options.eta_seed_delta));
            self.generators = seeds.map(|seed| Rng::new(self.options.rng, seed)).collect();
        }
        Ok(Tensor::from_vec(values, (self.seeds.len(), c, h, w), &Device::Cpu)?)
    }

    /// The first noise of an image (c, h, w).
    fn first(&mut self, image: usize, shape: (usize, usize, usize)) -> Vec<f32> {
        let NoiseOptions { rng, variation, resize_from, .. } = self.options;
        let count = |(c, h, w): (usize, usize, usize)| c * h * w;
        let generator = &mut self.generators[image];
        let from = resize_from.map_or(shape, |(h, w)| (shape.0, h, w));
        // Noise of another size is drawn beside the picture's own, which is what lies around it.
        let own = generator.normals(count(shape));
        let resized = (from != shape).then(|| Rng::new(rng, self.seeds[image]).normals(count(from)));
        let noise = resized.as_ref().unwrap_or(&own);
        let varied = variation.filter(|variation| variation.strength != 0.0).map(|Variation { seed, strength }| {
            let second = Rng::new(rng, seed.wrapping_add(image as u64)).normals(count(from));
            slerp(strength, noise, &second, from)
        });
        match (resized, varied) {
            (None, None) => own,
            (None, Some(varied)) => varied,
            (Some(resized), varied) => {
                let mut all = own;
                paste(varied.as_ref().unwrap_or(&resized), from, &mut all, shape);
                all
            }
        }
    }

    /// How many values each image has in `like`.
    fn values_of_an_image(&self, like: &Tensor) -> Result<usize> {
        let (expected, found) = (self.generators.len(), like.dim(0)?);
        if expected != found || found == 0 {
            return Err(Error::Images { expected, found });
        }
        Ok(like.elem_count() / found)
    }
}

impl NoiseSource for ImageNoise {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        let count = self.values_of_an_image(like)?;
        tensor(self.generators.iter_mut().flat_map(|generator| generator.normals(count)).collect(), like)
    }

    fn along_path(&mut self, like: &Tensor, (start, end): (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        let count = self.values_of_an_image(like)?;
        if self.paths.is_empty() {
            let path = |&seed: &u64| BrownianTree::new(seed, self.options.rng, count, start, end);
            self.paths = self.seeds.iter().map(path).collect();
        }
        tensor(self.paths.iter_mut().flat_map(|path| path.normals(from, to)).collect(), like)
    }
}

/// One generator for the whole batch, as diffusers has it when it is given a single one.
impl NoiseSource for CpuRng {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        tensor(self.normals(like.elem_count()), like)
    }
}

/// Values as a tensor of the shape, dtype and device of another.
fn tensor(values: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, like.shape(), &Device::Cpu)?.to_dtype(like.dtype())?.to_device(like.device())?)
}

#[cfg(test)]
mod tests;
