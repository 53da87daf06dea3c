//! Images that are made in one batch: some images of one job, or the images of several jobs that differ in nothing that a
//! batch has in common.

use std::sync::Arc;

use candle_core::Tensor;
use kiln_request::{Job, ParsedPrompt};
use kiln_scheduler::{ImageNoise, NoiseSource, Result};

use crate::pipeline::steering::SteeredNoise;

/// One batch. Every image has its own noise, its own prompts and its own first image; all else is the first job's.
pub struct Batch<'a>(Vec<(&'a Job, usize)>);

impl<'a> Batch<'a> {
    /// One batch of the images of `job`, from number `first` on.
    pub(crate) fn of_job(job: &'a Job, first: usize) -> Self {
        Self((first..first + job.batch_size).map(|index| (job, index)).collect())
    }

    /// The first image of each of `jobs`, of which there is at least one, and whose [`Job::shared`] are equal.
    pub fn of_jobs(jobs: impl IntoIterator<Item = &'a Job>) -> Self {
        Self(jobs.into_iter().map(|job| (job, 0)).collect())
    }

    /// The job whose settings hold for all images of the batch.
    pub(crate) fn job(&self) -> &'a Job {
        self.0[0].0
    }

    /// The images in their second pass; `None` if there is none.
    pub(crate) fn second(&self) -> Option<Self> {
        let images = self.images().map(|(job, index)| Some((&job.second_pass()?.job, index)));
        images.collect::<Option<Vec<_>>>().map(Self)
    }

    /// How many images.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The job of image `i`, and the image's number in it.
    pub(crate) fn image(&self, i: usize) -> (&'a Job, usize) {
        self.0[i]
    }

    /// The images: each one's job, and its number in it.
    pub(crate) fn images(&self) -> impl Iterator<Item = (&'a Job, usize)> + '_ {
        self.0.iter().copied()
    }

    /// The prompts of all images.
    pub(crate) fn prompts(&self) -> Vec<Arc<ParsedPrompt>> {
        self.images().map(|(job, index)| job.prompts(index)).collect()
    }

    /// The noise of all images. A latent covers `f` by `f` pixels.
    pub(crate) fn noise(&self, f: usize) -> BatchNoise {
        BatchNoise { images: self.0.iter().map(|(job, index)| job.noise(*index, f)).collect(), steered: None }
    }
}

/// The noise of the images of a batch. Each image draws from its own generator, or a caller gives the noise.
#[derive(Clone)]
pub(crate) struct BatchNoise {
    images: Vec<ImageNoise>,
    steered: Option<SteeredNoise>,
}

impl BatchNoise {
    /// The latents at the start, before they are scaled: `(n, c, h, w)` in f32 on the CPU.
    pub(crate) fn latents(&mut self, shape: (usize, usize, usize)) -> Result<Tensor> {
        let (c, h, w) = shape;
        if let Some(drawn) = self.steered_draw(&[self.images.len(), c, h, w], false)? {
            return Ok(drawn);
        }
        let all = self.images.iter_mut().map(|noise| noise.latents(shape)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&all, 0)?)
    }

    /// Replaces the noise by that of `steered`, if it gives any.
    pub(crate) fn steered_by(self, steered: Option<SteeredNoise>) -> Self {
        Self { steered, ..self }
    }

    /// The noise of a caller `(n, c, h, w)` in f32 on the CPU, if it gives any.
    pub(crate) fn steered_draw(&mut self, shape: &[usize], is_of_input: bool) -> Result<Option<Tensor>> {
        match (&mut self.steered, shape) {
            (Some(steered), &[n, c, h, w]) => steered.draw([n, c, h, w], is_of_input),
            _ => Ok(None),
        }
    }

    /// The tensors of `draw` for each image and its part of `like`, in one tensor.
    fn each(
        &mut self,
        like: &Tensor,
        mut draw: impl FnMut(&mut ImageNoise, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if let [one] = &mut self.images[..] {
            return draw(one, like);
        }
        let images = self.images.iter_mut().enumerate();
        let all = images.map(|(i, noise)| draw(noise, &like.narrow(0, i, 1)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&all, 0)?)
    }
}

impl NoiseSource for BatchNoise {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        if let Some(drawn) = self.steered_draw(like.dims(), false)? {
            return Ok(drawn.to_dtype(like.dtype())?.to_device(like.device())?);
        }
        self.each(like, |noise, like| noise.sample(like))
    }

    fn may_draw_ahead(&self) -> bool {
        self.steered.is_none()
    }

    fn brownian_increment(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        self.each(like, |noise, like| noise.brownian_increment(like, range, from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use kiln_request::{Request, Rng};

    /// Each image of a batch draws what it draws alone, with every source of noise.
    #[test]
    fn noise_does_not_know_of_its_neighbours() {
        let model = crate::ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let request = Request { width: Some(64), height: Some(64), batch_size: Some(3), ..Request::default() };
        let varied = Request { subseed_strength: Some(0.3), subseed: Some(5), ..request.clone() };
        let other = Request { seed: Some(40), rng: Rng::Cuda, ensd: Some(3), ..request.clone() };
        let jobs = [Request { seed: Some(7), ..request }, Request { seed: Some(9), ..varied }, other];
        let jobs = jobs.map(|request| request.resolve(&model).unwrap());
        let drawn = |batch: &Batch<'_>| {
            let mut noise = batch.noise(8);
            let first = noise.latents((4, 8, 8)).unwrap();
            let like = Tensor::zeros_like(&first).unwrap();
            let path = noise.brownian_increment(&like, (0.1, 10.0), 5.0, 2.0).unwrap();
            let all = Tensor::cat(&[first, noise.sample(&like).unwrap(), path], 1).unwrap();
            assert_eq!(all.dtype(), DType::F32);
            all.to_device(&Device::Cpu).unwrap()
        };
        let bits = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let all = drawn(&Batch::of_jobs(&jobs));
        for (i, job) in jobs.iter().enumerate() {
            let alone = drawn(&Batch::of_jobs([job]));
            assert_eq!(bits(all.narrow(0, i, 1).unwrap()), bits(alone));
        }
        for job in &jobs {
            let all = drawn(&Batch::of_job(job, 2));
            let alone = drawn(&Batch(vec![(job, 4)]));
            assert_eq!(bits(all.narrow(0, 2, 1).unwrap()), bits(alone));
        }
    }
}
