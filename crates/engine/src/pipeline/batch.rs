//! Pictures that the denoiser makes at once: some of one job, or those of several jobs that differ in nothing that a
//! batch has in common.

use candle_core::Tensor;
use kiln_scheduler::{ImageNoise, NoiseSource, Result};

use crate::pipeline::conditioning::Prompts;
use crate::request::Rng;
use crate::resolved::Job;
use crate::seeds::SeedOptions;
use crate::wildcards::Wildcards;

/// One batch. Every picture has its own noise and its own prompts; all else is the first one's.
pub(crate) struct Together<'a>(Vec<(&'a Job, usize)>);

impl<'a> Together<'a> {
    /// The pictures of `job` from `first` on, one batch of them.
    pub(crate) fn of_job(job: &'a Job, first: usize) -> Self {
        Self((first..first + job.batch_size).map(|index| (job, index)).collect())
    }

    /// The first picture of each of `jobs`, whose [`Job::shared`] are equal.
    pub(crate) fn of_jobs(jobs: impl IntoIterator<Item = &'a Job>) -> Self {
        Self(jobs.into_iter().map(|job| (job, 0)).collect())
    }

    /// What all have in common is what this one says.
    pub(crate) fn job(&self) -> &'a Job {
        self.0[0].0
    }

    /// How many pictures.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A picture's job, and its number in it.
    pub(crate) fn picture(&self, i: usize) -> (&'a Job, usize) {
        self.0[i]
    }

    /// The prompts of all pictures, with their choices made.
    pub(crate) fn prompts(&self) -> Vec<Prompts> {
        self.0.iter().map(|(job, index)| Prompts::of(job, *index)).collect()
    }

    /// The noise of all pictures; a latent covers `f` pixels a side.
    pub(crate) fn noise(&self, f: usize) -> Noises {
        Noises(self.0.iter().map(|(job, index)| job.noise(*index, f)).collect())
    }
}

impl Job {
    /// What this job has to have in common with others of a batch: all but texts and noise. Jobs with equal ones may
    /// still not fit together, where their texts have other lengths or other numbers of parts.
    pub(crate) fn shared(&self) -> Self {
        Self {
            prompt: String::new(),
            negative_prompt: None,
            seed: 0,
            seeds: SeedOptions::default(),
            rng: Rng::default(),
            batch_count: 1,
            batch_size: 1,
            wildcards: Wildcards::default(),
            literal_prompt: false,
            literal_negative_prompt: false,
            ..self.clone()
        }
    }
}

/// The noise of pictures that know nothing of each other.
pub(crate) struct Noises(Vec<ImageNoise>);

impl Noises {
    /// The latents at the start, before they are scaled: `(n, c, h, w)` in f32 on the processor.
    pub(crate) fn latents(&mut self, shape: (usize, usize, usize)) -> Result<Tensor> {
        let all = self.0.iter_mut().map(|noise| noise.latents(shape)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&all, 0)?)
    }

    /// What `draw` gives for each picture and its part of `like`, together.
    fn each(
        &mut self,
        like: &Tensor,
        mut draw: impl FnMut(&mut ImageNoise, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if let [one] = &mut self.0[..] {
            return draw(one, like);
        }
        let pictures = self.0.iter_mut().enumerate();
        let all = pictures.map(|(i, noise)| draw(noise, &like.narrow(0, i, 1)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&all, 0)?)
    }
}

impl NoiseSource for Noises {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        self.each(like, |noise, like| noise.sample(like))
    }

    fn along_path(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        self.each(like, |noise, like| noise.along_path(like, range, from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;
    use candle_core::{DType, Device};

    /// What a batch draws is what each of its pictures draws alone, in every way of drawing.
    #[test]
    fn noise_does_not_know_of_its_neighbours() {
        let model = crate::ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let request = Request { width: Some(64), height: Some(64), batch_size: Some(3), ..Request::default() };
        let varied = Request { subseed_strength: Some(0.3), subseed: Some(5), ..request.clone() };
        let other = Request { seed: Some(40), rng: Rng::Cuda, ensd: Some(3), ..request.clone() };
        let jobs = [Request { seed: Some(7), ..request }, Request { seed: Some(9), ..varied }, other];
        let jobs = jobs.map(|request| request.resolve(&model).unwrap());
        let drawn = |together: &Together<'_>| {
            let mut noise = together.noise(8);
            let first = noise.latents((4, 8, 8)).unwrap();
            let like = Tensor::zeros_like(&first).unwrap();
            let path = noise.along_path(&like, (0.1, 10.0), 5.0, 2.0).unwrap();
            let all = Tensor::cat(&[first, noise.sample(&like).unwrap(), path], 1).unwrap();
            assert_eq!(all.dtype(), DType::F32);
            all.to_device(&Device::Cpu).unwrap()
        };
        let bits = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let all = drawn(&Together::of_jobs(&jobs));
        for (i, job) in jobs.iter().enumerate() {
            let alone = drawn(&Together::of_jobs([job]));
            assert_eq!(bits(all.narrow(0, i, 1).unwrap()), bits(alone));
        }
        for job in &jobs {
            let all = drawn(&Together::of_job(job, 2));
            let alone = drawn(&Together(vec![(job, 4)]));
            assert_eq!(bits(all.narrow(0, 2, 1).unwrap()), bits(alone));
        }
    }
}
