//! What somebody wants, as plain data: the same for the command line, a batch file, PNG metadata and HTTP.

use std::path::PathBuf;

use kiln_clip::Emphasis;
use kiln_clip::prompt::{COMMA_BACKTRACK, ChunkCut, without_comments};
use kiln_models::ModelFolder;
use kiln_models::limits::{self, MAX_STEPS};
use kiln_scheduler::{Convention, InitialNoise, SamplerChoice, SamplerOptions, SigmaRange, SigmaSchedule, UniPcScale};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::lora::{LoraUse, tagged};
use crate::pipeline::guidance::{GuidanceOptions, MIMIC_SCALE, Threshold, in_part};
use crate::pipeline::init::Init;
use crate::pipeline::prompts::Parsed;
use crate::resolved::Job;
use crate::seeds::SeedOptions;
use crate::wildcards::Wildcards;

/// Pictures to make. What is `None` is left to the model folder's defaults, then to Kiln's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// What the pictures show.
    pub prompt: String,
    /// What they do not show. `None` is not the same as empty: see [`ModelFolder::zeros_for_no_negative`].
    pub negative_prompt: Option<String>,
    /// Width in pixels.
    pub width: Option<usize>,
    /// Height in pixels.
    pub height: Option<usize>,
    /// Steps of the sampler.
    pub steps: Option<usize>,
    /// Strength of the guidance; 1 is none, and skips the unconditional pass.
    pub cfg_scale: Option<f64>,
    /// The first picture's seed; `None` draws one. Picture `i` has seed + i.
    pub seed: Option<u64>,
    /// The sampler, under anybody's name; `None` is the model folder's own.
    pub sampler: Option<SamplerChoice>,
    /// How noise levels are spaced. The default is what the sampler's name ends in, or what the model folder says.
    pub scheduler: SigmaSchedule,
    /// The noise levels themselves, the noisiest first; they say how many steps there are.
    pub sigmas: Option<Vec<f64>>,
    /// Whose rules hold where programs differ: ranges of schedules, first latents, timesteps.
    pub convention: Convention,
    /// Between which noise levels `karras`, `exponential`, `polyexponential` and `beta_sigmas` lie. The default is that of
    /// the sampler's name, then the convention's, then that of diffusers' class.
    pub sigma_range: Option<SigmaRange>,
    /// The least noise level of a sigma schedule, where it is not the least of its range.
    pub sigma_min: Option<f64>,
    /// The largest.
    pub sigma_max: Option<f64>,
    /// Whether one noise level more is made than asked for, and the next-to-last one left out.
    pub discard_penultimate_sigma: Option<bool>,
    /// What unit noise is multiplied by to be the first latents.
    pub initial_noise: Option<InitialNoise>,
    /// UniPC's function B(h).
    pub unipc_variant: Option<UniPcScale>,
    /// How much of the noise is drawn again at each step.
    pub eta: Option<f64>,
    /// How much the noise level is raised before the steps, over all of them.
    pub s_churn: Option<f64>,
    /// The least noise level that is raised.
    pub s_tmin: Option<f64>,
    /// The largest.
    pub s_tmax: Option<f64>,
    /// What noise is multiplied by that is drawn after the first.
    pub s_noise: Option<f64>,
    /// The power of the sigma schedules `karras` and `polyexponential`.
    pub rho: Option<f64>,
    /// How far guided answers get the deviation of conditional ones, 0 to 1.
    pub guidance_rescale: Option<f64>,
    /// The part of the steps before which there is no guidance.
    pub guidance_start: Option<f64>,
    /// The part of the steps after which there is none.
    pub guidance_end: Option<f64>,
    /// Dynamic thresholding: the share of the values that is not clipped, 0 to 1.
    pub dynamic_thresholding: Option<f64>,
    /// The strength of the guidance whose range the images get; 7 when nothing is said.
    pub mimic_scale: Option<f64>,
    /// Added to the seeds for the noise after the first.
    pub ensd: Option<i64>,
    /// The seed of a second noise; `None` draws one where there is a strength.
    pub subseed: Option<u64>,
    /// How much of the second noise is mixed into the first, 0 to 1.
    pub subseed_strength: Option<f64>,
    /// Width and height in pixels of the picture whose noise this one has in its middle.
    pub seed_resize_from: Option<(usize, usize)>,
    /// Which generator draws the noise.
    pub rng: Rng,
    /// Changes of the model's weights, besides those that the prompt names with `<lora:name:0.8>`.
    pub loras: Vec<LoraUse>,
    /// How many batches; `None` is one.
    pub batch_count: Option<usize>,
    /// How many pictures are made at once; `None` is one.
    pub batch_size: Option<usize>,
    /// What the weights of words do.
    pub emphasis: Emphasis,
    /// The text encoders' layer that steers, from the end; `None` is the family's: 1, for SDXL 2.
    pub clip_skip: Option<usize>,
    /// How many tokens back a full chunk's last comma may be for the chunk to be cut behind it; `None` is 20, 0 is never.
    pub comma_backtrack: Option<usize>,
    /// Where texts are cut that have more tokens than a chunk holds.
    pub chunk_cut: ChunkCut,
    /// Whether a prompt and a negative prompt of unequal length get empty chunks up to the longer one; `None` is yes.
    /// Otherwise each steers with its own length.
    pub pad_conds: Option<bool>,
    /// A folder of lists: `__name__` in a prompt is a line of `name.txt`.
    pub wildcards_dir: Option<PathBuf>,
    /// Whether braces and `__name__` in the prompt are text: its choices were made before.
    pub literal_prompt: bool,
    /// The same for the negative prompt.
    pub literal_negative_prompt: bool,
    /// Whether `#` in the prompts is text. Otherwise it begins a comment that ends with its line and is removed before
    /// anything else is read.
    pub keep_comments: bool,
}

/// The generator that draws the noise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// What PyTorch's CPU generator draws, always in f32.
    #[default]
    Cpu,
    /// What PyTorch's CUDA generator draws.
    Cuda,
}

/// Tokens of a chunk's text.
const MAX_BACKTRACK: usize = 75;
/// More pictures than anybody waits for in one call are mistakes.
pub(crate) const MAX_PICTURES: usize = 100_000;

impl Request {
    /// Fills in every default and checks every value.
    ///
    /// # Errors
    /// [`Error::Value`] names the flag and the nearest possible value, or a tag of the prompt; [`Error::Scheduler`] says
    /// what the model's schedule does not allow; [`Error::Files`] names a folder or list of
    /// wildcards.
    pub fn resolve(&self, model: &ModelFolder) -> Result<Job> {
        if let Some(without) = self.without_comments() {
            return without.resolve(model);
        }
        let defaults = model.defaults();
        let multiple = model.size_multiple();
        let steps = in_range("--steps", self.steps.unwrap_or(defaults.steps), 1, MAX_STEPS)?;
        let sampling = self.sampling();
        let steps = self.steps_of_sigmas(&sampling)?.unwrap_or(steps);
        let batch_count = in_range("--batch-count", self.batch_count.unwrap_or(1), 1, MAX_PICTURES)?;
        let batch_size = in_range("--batch-size", self.batch_size.unwrap_or(1), 1, MAX_PICTURES)?;
        in_range("--batch-count times --batch-size", batch_count.saturating_mul(batch_size), 1, MAX_PICTURES)?;
        let sampler = match self.sampler {
            Some(sampler) => sampler,
            None => model.scheduler_config().sampler().map_err(|error| model.scheduler_error(error))?.into(),
        };
        let scheduler = match (self.scheduler, sampler.schedule) {
            (SigmaSchedule::Default, Some(named)) => named,
            (asked, _) => asked,
        };
        let named_range = sampler.range.filter(|_| scheduler.has_range() && self.convention == Convention::Diffusers);
        let sampling = SamplerOptions { sigma_range: sampling.sigma_range.or(named_range), ..sampling };
        let mut loras = self.loras.clone();
        loras.extend(tagged(&self.prompt)?);
        let job = Job {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: side("--width", self.width.unwrap_or(defaults.width), multiple)?,
            height: side("--height", self.height.unwrap_or(defaults.height), multiple)?,
            steps,
            cfg_scale: guidance("--cfg-scale", self.cfg_scale.unwrap_or(defaults.cfg_scale))?,
            seed: self.seed.unwrap_or_else(random_seed),
            sampler: sampler.kind,
            scheduler,
            sampling,
            guidance: self.guidance()?,
            rng: self.rng,
            loras,
            seeds: self.seeds(multiple)?,
            batch_count,
            batch_size,
            emphasis: self.emphasis,
            clip_skip: self.clip_skip.map(|skip| in_range("--clip-skip", skip, 1, model.text_layers())).transpose()?,
            comma_backtrack: {
                let backtrack = self.comma_backtrack.unwrap_or(COMMA_BACKTRACK);
                in_range("--comma-backtrack", backtrack, 0, MAX_BACKTRACK)?
            },
            chunk_cut: self.chunk_cut,
            pad_conds: self.pad_conds.unwrap_or(true),
            wildcards: self.wildcards()?,
            literal_prompt: self.literal_prompt,
            literal_negative_prompt: self.literal_negative_prompt,
            guidance_inside: model.has_guidance_inside(),
            init: Init::Noise,
            parsed: Parsed::default(),
        };
        job.schedule(model)?; // what the schedule refuses, it refuses before anything is loaded
        Ok(job)
    }

    /// The same request with its comments removed; `None` where it has none.
    fn without_comments(&self) -> Option<Self> {
        let has_any = |text: &str| !self.keep_comments && text.contains('#');
        let negative = self.negative_prompt.as_deref();
        (has_any(&self.prompt) || negative.is_some_and(has_any)).then(|| Self {
            prompt: without_comments(&self.prompt),
            negative_prompt: negative.map(without_comments),
            keep_comments: true,
            ..self.clone()
        })
    }

    /// How many steps the noise levels make, where they are given.
    fn steps_of_sigmas(&self, sampling: &SamplerOptions) -> Result<Option<usize>> {
        let made = sampling.steps()?;
        match (self.steps, made) {
            (Some(asked), Some(steps)) if asked != steps => {
                let expected = format!("none, or {steps}: that is how many --sigmas has");
                Err(Error::Value { name: "--steps", found: asked.to_string(), expected })
            }
            _ => Ok(made),
        }
    }

    /// The lists that the prompts name.
    fn wildcards(&self) -> Result<Wildcards> {
        let negative = self.negative_prompt.as_ref();
        let prompts = [
            (!self.literal_prompt).then_some(self.prompt.as_str()),
            negative.filter(|_| !self.literal_negative_prompt).map(String::as_str),
        ];
        let prompts: Vec<&str> = prompts.into_iter().flatten().collect();
        let folder = self.wildcards_dir.as_deref();
        folder.map_or(Ok(Wildcards::default()), |folder| Wildcards::read(folder, &prompts))
    }

    fn sampling(&self) -> SamplerOptions {
        SamplerOptions {
            eta: self.eta,
            s_churn: self.s_churn,
            s_tmin: self.s_tmin,
            s_tmax: self.s_tmax,
            s_noise: self.s_noise,
            rho: self.rho,
            sigmas: self.sigmas.clone(),
            convention: self.convention,
            sigma_range: self.sigma_range,
            sigma_min: self.sigma_min,
            sigma_max: self.sigma_max,
            discard_penultimate_sigma: self.discard_penultimate_sigma,
            initial_noise: self.initial_noise,
            unipc_variant: self.unipc_variant,
        }
    }

    fn guidance(&self) -> Result<GuidanceOptions> {
        if self.mimic_scale.is_some() && self.dynamic_thresholding.is_none() {
            let found = self.mimic_scale.unwrap_or_default().to_string();
            return Err(Error::Value { name: "--mimic-scale", found, expected: "--dynamic-thresholding too".into() });
        }
        let mimic_scale = self.mimic_scale.unwrap_or(MIMIC_SCALE);
        let options = GuidanceOptions {
            rescale: self.guidance_rescale.unwrap_or(0.0),
            threshold: self.dynamic_thresholding.map(|percentile| Threshold { percentile, mimic_scale }),
            start: self.guidance_start.unwrap_or(0.0),
            end: self.guidance_end.unwrap_or(1.0),
        };
        options.check()
    }

    fn seeds(&self, multiple: usize) -> Result<SeedOptions> {
        let subseed_strength = in_part("--subseed-strength", self.subseed_strength.unwrap_or(0.0))?;
        let resize_from = match self.seed_resize_from {
            Some((width, height)) => {
                Some((side("--seed-resize-from", width, multiple)?, side("--seed-resize-from", height, multiple)?))
            }
            None => None,
        };
        let drawn = || if subseed_strength > 0.0 { random_seed() } else { 0 };
        let subseed = self.subseed.unwrap_or_else(drawn);
        Ok(SeedOptions { eta_seed_delta: self.ensd.unwrap_or(0), subseed, subseed_strength, resize_from })
    }
}

/// Refuses a number outside of its bounds.
pub(crate) fn in_range(name: &'static str, value: usize, min: usize, max: usize) -> Result<usize> {
    limits::in_range(value, min, max).map_err(|error| Error::out_of_range(name, error))
}

/// Refuses a strength of the guidance that only gives noise.
pub(crate) fn guidance(name: &'static str, value: f64) -> Result<f64> {
    limits::guidance(value).map_err(|error| Error::out_of_range(name, error))
}

/// A side of an image: a multiple of what one latent covers.
pub(crate) fn side(name: &'static str, value: usize, multiple: usize) -> Result<usize> {
    limits::side(value, multiple).map_err(|error| Error::out_of_range(name, error))
}

/// A seed from the system's randomness. 32 bits: what AUTOMATIC1111 draws, and all that PyTorch's CPU generator uses.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_side_names_the_nearest() {
        let message = |value| side("--width", value, 8).unwrap_err().to_string();
        assert_eq!(message(100), "--width is 100, expected a multiple of 8 from 8 to 16384; the nearest is 104");
        assert!(message(0).ends_with("the nearest is 8"));
        assert!(message(99_999_999).ends_with("the nearest is 16384"));
        assert_eq!(side("--width", 512, 8).unwrap(), 512);
    }
}
