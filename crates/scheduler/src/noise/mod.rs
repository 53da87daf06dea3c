//! Noise for a batch of images.

mod part;
mod variation;

use crate::brownian::BrownianTree;
use crate::rng::{Rng, RngKind};
use crate::{CpuRng, Error, Result};
use candle_core::{Device, Tensor};
pub use part::NoisePart;
pub(crate) use part::normals;
use variation::{paste, slerp};

/// The source of fresh noise for samplers.
pub trait NoiseSource {
    /// Unit normal noise of the shape, dtype and device of `like` (n, c, h, w).
    fn sample(&mut self, like: &Tensor) -> Result<Tensor>;

    /// Whether [`Self::sample`] may be called before a sampler asks, for noise that may not be used.
    fn may_draw_ahead(&self) -> bool {
        true
    }

    /// Unit normal noise for the step from one noise level to another: the increment of a Brownian path over the noise
    /// levels of `range` (least, largest), which does not depend on the steps. A source without paths returns
    /// independent noise.
    fn brownian_increment(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        let _ = (range, from, to);
        self.sample(like)
    }
}

/// Options of the noise besides the seeds. The default is PyTorch's CPU generator alone.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct NoiseOptions {
    /// The random number generator.
    pub rng: RngKind,
    /// The offset that is added to the seeds for all noise after the first (AUTOMATIC1111's ENSD). With 0 the
    /// generators continue.
    pub eta_seed_delta: u64,
    /// A second noise that is mixed into the first.
    pub variation: Option<Variation>,
    /// The height and width of the latents that the first noise is generated for. This noise is centered in an image of
    /// another size, which then has a similar composition.
    pub resize_from: Option<(usize, usize)>,
    /// The part of the first seed's image in the draws of one generator; the next ones follow. `None` if each image has a generator of
    /// its own. Second noises have their own.
    pub part: Option<NoisePart>,
}

/// A second noise, mixed into the first by spherical interpolation. It results in a similar image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variation {
    /// The seed of the first image's second noise. It increases by 1 for each further image.
    pub seed: u64,
    /// The weight of the second noise: 0 is none of it, 1 is nothing else.
    pub strength: f64,
}

/// One generator for each image of a batch. Image i of a request is the image that seed + i yields alone (diffusers: a
/// list of generators).
#[derive(Debug, Clone)]
pub struct ImageNoise {
    seeds: Vec<u64>,
    options: NoiseOptions,
    generators: Vec<Rng>,
    /// One path for each image, created when a sampler first needs it.
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

    /// Generators with these seeds and options.
    pub fn with_options(seeds: impl IntoIterator<Item = u64>, options: NoiseOptions) -> Self {
        let seeds: Vec<u64> = seeds.into_iter().collect();
        let generators = seeds.iter().map(|&seed| Rng::new(options.rng, seed)).collect();
        Self { seeds, options, generators, paths: Vec::new() }
    }

    /// The initial latents before scaling: (n, c, h, w) in f32 on the CPU.
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
        let part = self.part(image);
        let count = |(c, h, w): (usize, usize, usize)| c * h * w;
        let generator = &mut self.generators[image];
        let from = resize_from.map_or(shape, |(h, w)| (shape.0, h, w));
        // The noise of another size is generated in addition to the image's own, which fills the area around it.
        let own = normals(part, generator, count(shape));
        let resized = (from != shape).then(|| normals(part, &mut Rng::new(rng, self.seeds[image]), count(from)));
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

    /// The part of an image in the draws of its generator.
    fn part(&self, image: usize) -> Option<NoisePart> {
        self.options.part.and_then(|part| part.after(image))
    }

    /// The number of values that each image has in `like`.
    fn values_per_image(&self, like: &Tensor) -> Result<usize> {
        let (expected, found) = (self.generators.len(), like.dim(0)?);
        if expected != found || found == 0 {
            return Err(Error::Images { expected, found });
        }
        Ok(like.elem_count() / found)
    }
}

impl NoiseSource for ImageNoise {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        let count = self.values_per_image(like)?;
        let parts: Vec<_> = (0..self.generators.len()).map(|image| self.part(image)).collect();
        let draws = self.generators.iter_mut().zip(parts);
        tensor(draws.flat_map(|(generator, part)| normals(part, generator, count)).collect(), like)
    }

    fn brownian_increment(&mut self, like: &Tensor, (start, end): (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        let count = self.values_per_image(like)?;
        if self.paths.is_empty() {
            let path = |(image, &seed): (usize, &u64)| {
                BrownianTree::new(seed, self.options.rng, (count, self.part(image)), start, end)
            };
            self.paths = self.seeds.iter().enumerate().map(path).collect();
        }
        tensor(self.paths.iter_mut().flat_map(|path| path.normals(from, to)).collect(), like)
    }
}

/// One generator for the whole batch, as diffusers uses it when it gets a single one.
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
