//! From a request to a job: defaults and checks.

use kiln_models::ModelFolder;
use kiln_prompt::{COMMA_BACKTRACK, without_comments};
use kiln_scheduler::{Convention, SamplerOptions, SigmaSchedule};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::init::Init;
use crate::input::{InputCache, Prepared};
use crate::job::Job;
use crate::limits::{check_images, in_range, random_seed, side};
use crate::lora::tagged;
use crate::notes::Notes;
pub use crate::options::{GuidanceOptions, RefinerOptions, Request};
use crate::options::{OptionSet, SizeOptions, check, refuse_foreign, refuse_ignored, sampling};
use crate::prompts::Parsed;
use crate::reference::size_of_result;
use crate::refiner::Refiner;
use crate::seeds::SeedOptions;
use crate::wildcards::Wildcards;

/// The generator that draws the noise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// The numbers of PyTorch's CPU generator, always in f32.
    #[default]
    Cpu,
    /// The numbers of PyTorch's CUDA generator.
    Cuda,
}

impl Request {
    /// Fills in every default and checks every value.
    ///
    /// # Errors
    /// [`Error::Value`] names the option and the nearest possible value, or a tag of the prompt; [`Error::Scheduler`] says
    /// what the model's schedule does not allow; [`Error::Files`] names a folder or list of
    /// wildcards.
    pub fn resolve(&self, model: &ModelFolder) -> Result<Job> {
        self.resolve_with(model, &mut InputCache::default())
    }

    /// [`Self::resolve`] with the input images that are known, for many requests.
    ///
    /// # Errors
    /// See [`Self::resolve`].
    pub fn resolve_with(&self, model: &ModelFolder, inputs: &mut InputCache) -> Result<Job> {
        if let Some(without) = self.without_comments() {
            return without.resolve_with(model, inputs);
        }
        let defaults = model.defaults();
        let multiple = model.size_multiple();
        check(self)?;
        refuse_foreign(self, model)?;
        if let Some(with) = self.with_default_strength(defaults) {
            return with.resolve_with(model, inputs);
        }
        refuse_ignored(self, model.ignored_text_options())?;
        let prepared = inputs.prepare(self, multiple)?;
        let size = prepared.as_ref().map_or((defaults.width, defaults.height), |image| (image.width, image.height));
        let (results, fitted) = (self.size_or(size), prepared.as_ref().map(|prepared| &prepared.fitted));
        let references = self.prepare_references(model, results, fitted)?;
        let size = size_of_result(model, &references).filter(|_| prepared.is_none()).unwrap_or(size);
        let sampling = sampling(self);
        let steps = self.steps_of_sigmas(&sampling)?.or(self.steps).unwrap_or(defaults.steps);
        let (batch_count, batch_size) = (self.batch_count.unwrap_or(1), self.batch_size.unwrap_or(1));
        check_images(batch_count, batch_size)?;
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
        let refiner = self.open_refiner(model)?;
        let text_layers =
            refiner.iter().map(|refiner| refiner.model().text_layers()).fold(model.text_layers(), usize::min);
        let mut loras = self.loras.clone();
        loras.extend(tagged(&self.prompt)?);
        let cfg_scale = self.cfg_scale.unwrap_or(defaults.cfg_scale);
        let cfg_scale = self.strength_for(cfg_scale, model, &loras, sampler.kind);
        let job = Job {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: side("width", self.size_or(size).0, multiple)?,
            height: side("height", self.size_or(size).1, multiple)?,
            steps,
            cfg_scale,
            cfg_schedule: self.cfg_schedule(model)?,
            seed: self.seed.unwrap_or_else(random_seed),
            sampler: sampler.kind,
            scheduler,
            sampling,
            guidance: self.guidance_options()?,
            flow: self.flow_options(model),
            network: self.network(model.unet_config())?,
            rng: self.rng,
            loras,
            seeds: self.seeds(multiple)?,
            batch_count,
            batch_size,
            emphasis: self.emphasis,
            clip_skip: self.clip_skip.map(|skip| in_range("clip_skip", skip, 1, text_layers)).transpose()?,
            comma_backtrack: self.comma_backtrack.unwrap_or(COMMA_BACKTRACK),
            chunk_cut: self.chunk_cut,
            max_length: self.max_length,
            pad_conds: self.pad_conds.unwrap_or(true),
            wildcards: self.wildcards()?,
            literal_prompt: self.literal_prompt,
            literal_negative_prompt: self.literal_negative_prompt,
            guidance_inside: model.has_guidance_inside(),
            needs_negative_prompt: model.family().guides_by_negative_prompt()
                && self.convention == Convention::Diffusers,
            restored_norm: model.family().restored_norm().filter(|_| self.convention == Convention::Diffusers),
            init: Init::Noise,
            image: self.image_options(),
            input: None,
            extra_channels: model.extra_channels(),
            controls: Vec::new(),
            ip_adapters: Vec::new(),
            regions: self.prepare_regions()?,
            references,
            refiner,
            refining: RefinerOptions::of(self),
            sizes: SizeOptions::of(self).check(self, model)?,
            parsed: Parsed::default(),
            hires: None,
            notes: Notes::default(),
        };
        let (results, fitted) = ((job.width, job.height), prepared.as_ref().map(|prepared| &prepared.fitted));
        self.check_control_parts(model)?;
        let controls = self.prepare_controls(results, fitted)?;
        let ip_adapters = self.prepare_image_prompts(results)?;
        let job = Job { controls, ip_adapters, ..job };
        let job = match prepared {
            None => job,
            Some(Prepared { init, input, .. }) => {
                init.check(job.width, job.height)?;
                Job { init, input: Some(input), ..job }
            }
        };
        job.check_extra_channels(model)?;
        job.check_rule(model)?;
        job.check_block_cache("steps")?;
        job.check_regions(model)?;
        job.spans(model)?; // what schedules refuse, they refuse before anything is loaded
        let hires = self.second_pass(&job, model)?;
        let job = Job { hires, ..job };
        Ok(Job { notes: self.notes(&job, model), ..job })
    }

    /// Its width and height, or those of `size`.
    fn size_or(&self, (width, height): (usize, usize)) -> (usize, usize) {
        (self.width.unwrap_or(width), self.height.unwrap_or(height))
    }

    /// The refiner, opened and checked; `None` where the request has none.
    fn open_refiner(&self, model: &ModelFolder) -> Result<Option<Refiner>> {
        if model.is_refiner() && self.init.is_none() {
            let expected =
                "a model that begins images, with this one as `refiner`; alone it continues an image, `init`";
            let found = format!("{}, a refiner", model.name());
            return Err(Error::Value { name: "model", found, expected: expected.into() });
        }
        let Some(path) = &self.refiner else {
            return match self.refiner_switch {
                None => Ok(None),
                Some(switch) => {
                    let expected = "`refiner` too, the model that takes over".into();
                    Err(Error::Value { name: "refiner_switch", found: switch.to_string(), expected })
                }
            };
        };
        let switch = RefinerOptions::of(self).switch;
        if !(switch > 0.0 && switch < 1.0) {
            let expected = "more than 0 and less than 1".into();
            return Err(Error::Value { name: "refiner_switch", found: switch.to_string(), expected });
        }
        let refiner = Refiner::open(path)?;
        refiner.check(model)?;
        Ok(Some(refiner))
    }

    /// Removes the comments of prompts; `None` if there are none.
    fn without_comments(&self) -> Option<Self> {
        let has_any = |text: &str| !self.keep_comments && text.contains('#');
        let others = [&self.negative_prompt, &self.hires_prompt, &self.hires_negative_prompt].map(Option::as_deref);
        let [negative, hires, hires_negative] = others;
        (has_any(&self.prompt) || others.into_iter().flatten().any(has_any)).then(|| Self {
            prompt: without_comments(&self.prompt),
            negative_prompt: negative.map(without_comments),
            hires_prompt: hires.map(without_comments),
            hires_negative_prompt: hires_negative.map(without_comments),
            keep_comments: true,
            ..self.clone()
        })
    }

    /// How many steps the noise levels make, where they are given.
    fn steps_of_sigmas(&self, sampling: &SamplerOptions) -> Result<Option<usize>> {
        let made = sampling.steps()?;
        match (self.steps, made) {
            (Some(asked), Some(steps)) if asked != steps => {
                let expected = format!("none, or {steps}: that is how many `sigmas` has");
                Err(Error::Value { name: "steps", found: asked.to_string(), expected })
            }
            _ => Ok(made),
        }
    }

    /// The lists that the prompts name.
    fn wildcards(&self) -> Result<Wildcards> {
        let prompts =
            [Some(&self.prompt), self.hires_prompt.as_ref()].map(|text| text.filter(|_| !self.literal_prompt));
        let negative = [&self.negative_prompt, &self.hires_negative_prompt].map(Option::as_ref);
        let negative = negative.map(|text| text.filter(|_| !self.literal_negative_prompt));
        let prompts: Vec<&str> = prompts.into_iter().chain(negative).flatten().map(String::as_str).collect();
        let folder = self.wildcards_dir.as_deref();
        folder.map_or(Ok(Wildcards::default()), |folder| Wildcards::read(folder, &prompts))
    }

    /// The strengths over the steps, in the range of `cfg_scale`.
    fn cfg_schedule(&self, model: &ModelFolder) -> Result<Option<Vec<f64>>> {
        let Some(strengths) = &self.cfg_schedule else { return Ok(None) };
        let name = "cfg_schedule";
        let fail = |found: String, expected: &str| Err(Error::Value { name, found, expected: expected.into() });
        if model.has_guidance_inside() {
            return fail(format!("{strengths:?}"), "none: this model takes one strength, `cfg_scale`, for all steps");
        }
        if strengths.is_empty() {
            return fail("empty".into(), "one number at least, such as 9,5,1");
        }
        match strengths.iter().find(|strength| !(0.0..=1000.0).contains(*strength)) {
            Some(strength) => fail(format!("{strength:?}"), "numbers from 0 to 1000 (usual: 1 to 12)"),
            None => Ok(Some(strengths.clone())),
        }
    }

    /// Its options of guidance apart from the strength.
    ///
    /// # Errors
    /// [`Error::Value`] for an option that needs another one.
    pub fn guidance_options(&self) -> Result<GuidanceOptions> {
        if let (Some(mimic_scale), None) = (self.mimic_scale, self.dynamic_thresholding) {
            let expected = "`dynamic_thresholding` too".into();
            return Err(Error::Value { name: "mimic_scale", found: mimic_scale.to_string(), expected });
        }
        let apg = [("apg_threshold", self.apg_threshold), ("apg_momentum", self.apg_momentum)];
        if let (None, Some((name, Some(found)))) = (self.apg_eta, apg.into_iter().find(|(_, value)| value.is_some())) {
            return Err(Error::Value { name, found: format!("{found:?}"), expected: "`apg_eta` too".into() });
        }
        let slg = [("slg_start", self.slg_start), ("slg_end", self.slg_end)]
            .map(|(name, part)| (name, part.map(|part| part.to_string())));
        let slg = slg.into_iter().chain([("slg_layers", self.slg_layers.map(|layers| layers.to_string()))]);
        if let (None, Some((name, Some(found)))) = (self.slg_scale, slg.into_iter().find(|(_, value)| value.is_some()))
        {
            return Err(Error::Value { name, found, expected: "`slg_scale` too".into() });
        }
        GuidanceOptions::of(self).check()
    }

    fn seeds(&self, multiple: usize) -> Result<SeedOptions> {
        let subseed_strength = self.subseed_strength.unwrap_or(0.0);
        let resize_from = match self.seed_resize_from {
            Some((width, height)) => {
                Some((side("seed_resize_from", width, multiple)?, side("seed_resize_from", height, multiple)?))
            }
            None => None,
        };
        let drawn = || if subseed_strength > 0.0 { random_seed() } else { 0 };
        let subseed = self.subseed.unwrap_or_else(drawn);
        let images = self.batch_count.unwrap_or(1).saturating_mul(self.batch_size.unwrap_or(1));
        if let Some(part) = self.noise_part.filter(|part| part.after(images.saturating_sub(1)).is_none()) {
            let expected = format!("a part with {images} images from it on, one for each image of the request");
            return Err(Error::Value { name: "noise_part", found: part.to_string(), expected });
        }
        let (eta_seed_delta, part) = (self.ensd.unwrap_or(0), self.noise_part);
        Ok(SeedOptions { eta_seed_delta, subseed, subseed_strength, resize_from, part })
    }
}
