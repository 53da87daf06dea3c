//! Noise for a batch of images.

use crate::{CpuRng, Error, Result};
use candle_core::{Device, Tensor};

/// Where samplers take fresh noise from.
pub trait NoiseSource {
    /// Unit normal noise of the shape, dtype and device of `like` (n, c, h, w).
    fn sample(&mut self, like: &Tensor) -> Result<Tensor>;
}

/// One generator for each image of a batch: image i of a request is the picture that seed + i gives
/// alone (diffusers: a list of generators).
#[derive(Debug, Clone)]
pub struct ImageNoise {
    generators: Vec<CpuRng>,
}

impl ImageNoise {
    /// Generators with the seeds `seed`, `seed + 1`, ..., wrapping.
    pub fn new(seed: u64, images: usize) -> Self {
        Self::from_seeds((0..images as u64).map(|i| seed.wrapping_add(i)))
    }

    /// Generators with these seeds.
    pub fn from_seeds(seeds: impl IntoIterator<Item = u64>) -> Self {
        Self { generators: seeds.into_iter().map(CpuRng::new).collect() }
    }

    /// The latents at the start, before they are scaled: (n, c, h, w) in f32 on the CPU.
    pub fn latents(&mut self, (c, h, w): (usize, usize, usize)) -> Result<Tensor> {
        let n = self.generators.len();
        Ok(Tensor::from_vec(self.draw(c * h * w), (n, c, h, w), &Device::Cpu)?)
    }

    /// `count` values from each generator in turn.
    fn draw(&mut self, count: usize) -> Vec<f32> {
        self.generators.iter_mut().flat_map(|generator| generator.normals(count)).collect()
    }
}

impl NoiseSource for ImageNoise {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        let (expected, found) = (self.generators.len(), like.dim(0)?);
        if expected != found || found == 0 {
            return Err(Error::Images { expected, found });
        }
        let values = self.draw(like.elem_count() / found);
        Ok(Tensor::from_vec(values, like.shape(), &Device::Cpu)?.to_dtype(like.dtype())?.to_device(like.device())?)
    }
}

/// One generator for the whole batch, as diffusers has it when it is given a single one.
impl NoiseSource for CpuRng {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        let values = self.normals(like.elem_count());
        Ok(Tensor::from_vec(values, like.shape(), &Device::Cpu)?.to_dtype(like.dtype())?.to_device(like.device())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_a_batch_is_the_image_alone() -> Result<()> {
        let mut batch = ImageNoise::new(u64::MAX, 2); // seeds u64::MAX and 0
        let mut alone = ImageNoise::new(0, 1);
        let shape = (3, 5, 5);
        let first: Vec<f32> = batch.latents(shape)?.get(1)?.flatten_all()?.to_vec1()?;
        assert_eq!(first, alone.latents(shape)?.flatten_all()?.to_vec1::<f32>()?);
        let like = Tensor::zeros((2, 3, 5, 5), candle_core::DType::F16, &Device::Cpu)?;
        let second = batch.sample(&like)?;
        assert_eq!(second.dtype(), like.dtype());
        let expected = alone
            .latents(shape)?
            .to_dtype(like.dtype())?
            .to_dtype(candle_core::DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        assert_eq!(second.get(1)?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1::<f32>()?, expected);
        Ok(())
    }

    #[test]
    fn a_batch_of_another_size_is_refused() {
        let like = Tensor::zeros((3, 1, 4, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
        let error = ImageNoise::new(0, 2).sample(&like).unwrap_err();
        assert_eq!(
            error.to_string(),
            "3 images for 2 noise generators; make one generator for each image of the batch"
        );
    }
}
