//! A request with every value filled in.

use std::sync::Arc;

use kiln_models::{ExtraChannels, FamilyRef, ModelFolder};
use kiln_network::text::PromptImage;
use kiln_prompt::{ChunkCut, Emphasis, TextOptions};
use kiln_scheduler::{Convention, Resolved, SamplerKind, SamplerOptions, Schedule, SchedulerConfig, SigmaSchedule};
use serde::Serialize;
use serde_json::json;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::hires::SecondPass;
use crate::image_prompt::IpAdapter;
use crate::init::Init;
use crate::input::{Input, Rule};
use crate::limits::check_images;
use crate::lora::LoraUse;
use crate::notes::Notes;
use crate::options::FlowOptions;
use crate::options::GuidanceOptions;
use crate::options::ImageOptions;
use crate::options::NetworkOptions;
use crate::options::RefinerOptions;
use crate::options::SizeOptions;
use crate::prompts::{Parsed, ParsedPrompt};
use crate::reference::Reference;
use crate::refiner::{DenoiserSpan, Refiner};
use crate::regions::Region;
use crate::request::Rng;
use crate::seeds::SeedOptions;
use crate::wildcards::Wildcards;

/// A [`crate::Request`] with all defaults filled in, checked once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    /// The prompt as given, including LoRA tags.
    pub prompt: String,
    /// The negative prompt, if set.
    pub negative_prompt: Option<String>,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Steps of the sampler.
    pub steps: usize,
    /// Strength of the guidance.
    pub cfg_scale: f64,
    /// Guidance scales from the first to the last evaluation instead, if set.
    pub cfg_schedule: Option<Vec<f64>>,
    /// The first image's seed.
    pub seed: u64,
    /// The sampler.
    pub sampler: SamplerKind,
    /// How noise levels are spaced.
    pub scheduler: SigmaSchedule,
    /// Other sampler options.
    pub sampling: SamplerOptions,
    /// Guidance options other than the scale.
    pub guidance: GuidanceOptions,
    /// Options of flow models. The guidance scale is there if the denoiser takes one.
    pub flow: FlowOptions,
    /// Options that change the network.
    pub network: NetworkOptions,
    /// Which generator draws the noise.
    pub rng: Rng,
    /// LoRAs: first those of the request by file, then those that the prompt names.
    pub loras: Vec<LoraUse>,
    /// Seed variation and offsets.
    pub seeds: SeedOptions,
    /// How many batches.
    pub batch_count: usize,
    /// How many images are made at once.
    pub batch_size: usize,
    /// The rule for weights of words.
    pub emphasis: Emphasis,
    /// CLIP skip: the hidden layer used, counted from the last, if set.
    pub clip_skip: Option<usize>,
    /// How many tokens back a full chunk's last comma may be for the chunk to be cut behind it.
    pub comma_backtrack: usize,
    /// Where texts are cut that have more tokens than a chunk holds.
    pub chunk_cut: ChunkCut,
    /// How many tokens a T5 text encoder gets, if set.
    pub max_length: Option<usize>,
    /// Whether texts of unequal length get empty chunks up to the longer one.
    pub pad_conds: bool,
    /// The lists that the prompts name.
    #[serde(skip)]
    pub wildcards: Wildcards,
    /// Whether the prompt's choices were made before.
    pub literal_prompt: bool,
    /// Whether the negative prompt is literal.
    pub literal_negative_prompt: bool,
    /// [`ModelFolder::has_guidance_inside`]: the denoiser runs without an unconditional half whatever the strength.
    #[serde(skip)]
    pub guidance_inside: bool,
    /// Whether there is no guidance without a negative prompt: [`kiln_models::Family::guides_by_negative_prompt`].
    #[serde(skip)]
    pub needs_negative_prompt: bool,
    /// The side of the tokens whose norm guidance restores, if it does: [`kiln_models::Family::restored_norm`].
    #[serde(skip)]
    pub restored_norm: Option<usize>,
    /// The initial latents.
    pub init: Init,
    /// Options of the input image.
    pub image: ImageOptions,
    /// Facts about the input image, if the request names one.
    #[serde(skip)]
    pub input: Option<Input>,
    /// The meaning of the channels that the denoiser takes besides latents.
    #[serde(skip)]
    pub extra_channels: ExtraChannels,
    /// Control networks, each with its image.
    pub controls: Vec<Control>,
    /// IP-Adapters, each with its image.
    pub ip_adapters: Vec<IpAdapter>,
    /// The places of the parts of the prompt.
    pub regions: Vec<Region>,
    /// Reference images.
    pub references: Vec<Reference>,
    /// The model of the last steps, if any.
    pub refiner: Option<Refiner>,
    /// Options of the refiner.
    pub refining: RefinerOptions,
    /// The sizes that SDXL's denoiser takes.
    pub sizes: SizeOptions,
    /// Values derived from the other fields. Code that changes one of them resets this.
    #[serde(skip)]
    pub parsed: Parsed,
    /// The second pass of hires fix.
    pub hires: Option<Box<SecondPass>>,
    /// Sentences about parts of the request without effect: see [`Job::advice`].
    #[serde(skip)]
    pub notes: Notes,
}

/// AUTOMATIC1111's largest strength.
const MOST_STRENGTH: f64 = 0.999;

impl Job {
    /// The options that decide how its texts are encoded.
    pub fn text_options(&self) -> TextOptions {
        let Self { emphasis, clip_skip, chunk_cut, comma_backtrack, max_length, .. } = *self;
        TextOptions { emphasis, clip_skip, chunk_cut, comma_backtrack, max_length }
    }

    /// The values that jobs of one batch share: all but texts and noise. Jobs with equal ones may still need batches of
    /// their own if their texts have other lengths or other numbers of parts.
    pub fn shared(&self) -> Self {
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
            input: None,
            parsed: Parsed::default(),
            notes: Notes::default(),
            hires: self.hires.as_deref().map(|pass| Box::new(pass.shared())),
            ..self.clone()
        }
    }

    /// How many images there will be.
    pub fn images(&self) -> usize {
        self.batch_count * self.batch_size
    }

    /// The seed of image `index`. Variations of one image have one seed, and differ in the second; images that share a generator
    /// have one, too.
    pub fn seed_of(&self, index: usize) -> u64 {
        let is_shared = self.seeds.subseed_strength > 0.0 || self.seeds.part.is_some();
        if is_shared { self.seed } else { self.seed.wrapping_add(index as u64) }
    }

    /// Whether it begins with the results of another pass.
    pub fn is_second_pass(&self) -> bool {
        matches!(self.init, Init::FirstPass { .. })
    }

    /// Whether the denoiser runs without prompt too.
    pub fn is_guided(&self) -> bool {
        let is_stronger = match &self.cfg_schedule {
            Some(strengths) => strengths.iter().any(|&strength| strength != 1.0),
            None => self.cfg_scale != 1.0,
        };
        let is_stronger = is_stronger && !self.lacks_negative_prompt();
        !self.guidance_inside && (is_stronger || self.sampler.needs_unconditional())
    }

    /// Whether images may have different prompts.
    pub fn has_choices(&self) -> bool {
        let prompt = Some(&self.prompt).filter(|_| !self.literal_prompt);
        let negative = self.negative_prompt.as_ref().filter(|_| !self.literal_negative_prompt);
        [prompt, negative].into_iter().flatten().any(|text| text.contains('{') || text.contains("__"))
    }

    /// Sets batches of `n` images.
    ///
    /// # Errors
    /// [`Error::Value`] for more images than a job may have.
    pub fn with_batch_size(self, n: usize) -> Result<Self> {
        check_images(self.batch_count, n)?;
        let hires = match self.hires {
            Some(pass) => Some(Box::new(SecondPass { job: pass.job.with_batch_size(n)?, ..*pass })),
            None => None,
        };
        Ok(Self { batch_size: n, parsed: Parsed::default(), hires, ..self })
    }

    /// The prompts of image `index`, read once.
    pub fn prompts(&self, index: usize) -> Arc<ParsedPrompt> {
        self.parsed.prompts(self, index)
    }

    /// The noise levels that the job's own model visits, by diffusers' `from_config` on its folder's configuration, made once. A
    /// refiner may end the run before its last level: [`Self::spans`].
    pub fn schedule(&self, model: &ModelFolder) -> Result<Arc<Schedule>> {
        self.parsed.schedule(|| self.schedule_of(model, true))
    }

    /// The schedule of the job's steps by the configuration of `model`. It starts where an input image says so, or with all
    /// noise where `starts` is false.
    pub(crate) fn schedule_of(&self, model: &ModelFolder, starts: bool) -> Result<Schedule> {
        let blame = |error| Error::from(model.scheduler_error(error));
        self.schedule_from((model.scheduler_config(), model.family()), starts, &blame)
    }

    /// [`Self::schedule_of`] a model of `family` with this configuration. `blame` says whose fault an error is.
    pub(crate) fn schedule_from(
        &self,
        (config, family): (&SchedulerConfig, FamilyRef),
        starts: bool,
        blame: &dyn Fn(kiln_scheduler::Error) -> Error,
    ) -> Result<Schedule> {
        let scheduler = family.sigma_schedule(self.scheduler);
        let config = config.resolve(self.sampler, scheduler).map_err(blame)?;
        let config = self.with_flow(config, family).map_err(blame)?;
        let config = config.with_options(&self.sampling).map_err(blame)?;
        if let Some(config) = self.in_part(&config, family)?.filter(|_| starts) {
            return Schedule::new(&config, self.steps).map_err(blame);
        }
        let schedule = |steps: usize| Schedule::new(&config, steps).map_err(blame);
        let Some(strength) = self.init.strength().filter(|_| starts) else { return schedule(self.steps) };
        let (schedule, start) = match self.image.rule {
            Rule::Diffusers => {
                let schedule = schedule(self.steps)?;
                let start = schedule.start_for_strength(strength);
                (schedule, start)
            }
            rule => {
                let (total, skipped) = self.steps_of_rule(rule, strength);
                let schedule = schedule(total)?;
                let steps = schedule.step_starts();
                // AUTOMATIC1111's timesteps end with one that is no step (`sample_img2img` and `ddim` of
                // `modules/sd_samplers_timesteps.py`): of the last `int(min(strength, 0.999) steps)` all but this one run.
                let skipped = match config.is_on_timesteps() {
                    true => (steps.len() + 1).saturating_sub(self.encoded_steps(strength)),
                    false => skipped,
                };
                let start = steps.get(skipped).copied().unwrap_or(schedule.points().len());
                (schedule, start)
            }
        };
        schedule.starting_at(start).map_err(blame)
    }

    /// The configuration with a part of the distilled timesteps where a latent consistency model with guidance inside begins with an
    /// image: all steps run, over that part of its timesteps (`LatentConsistencyModelImg2ImgPipeline` of diffusers, which
    /// has no such class for SDXL nor for masks).
    fn in_part(&self, config: &Resolved, family: FamilyRef) -> Result<Option<Resolved>> {
        let strength = match self.init {
            Init::Image { strength, .. } | Init::FirstPass { strength, .. } => strength,
            Init::Noise | Init::Masked { .. } => return Ok(None),
        };
        let mut config = config.clone();
        config.distilled_part = strength;
        let of_rule = self.image.rule == Rule::Diffusers && self.guidance_inside && family.has_distilled_img2img();
        let Some((_, kept)) = config.distilled().filter(|_| of_rule) else { return Ok(None) };
        if kept < self.steps {
            let name = if self.is_second_pass() { "hires_strength" } else { "strength" };
            let (all, steps) = (config.distilled_timesteps, self.steps);
            let expected =
                format!("more, or fewer steps: it leaves {kept} of the model's {all} timesteps for {steps} steps");
            return Err(Error::Value { name, found: format!("{strength:?}"), expected });
        }
        Ok(Some(config))
    }

    /// A key of the schedule: jobs of one model with equal keys have equal schedules.
    pub fn schedule_key(&self) -> String {
        let Self { sampler, scheduler, sampling, steps, init, image, refiner, refining, .. } = self;
        // A flow model's levels may depend on the size.
        let flow = (self.width, self.height, self.flow.shift);
        json!([sampler, scheduler, sampling, steps, init, image, refiner, refining, flow]).to_string()
    }

    /// Has the job use the spans of another job of its model with the same [`Self::schedule_key`]: many jobs share one
    /// schedule, which takes some tens of KiB.
    pub fn share_spans(&mut self, spans: Arc<[DenoiserSpan]>) {
        self.parsed.set_spans(spans);
    }

    /// The job of the second pass, if there is one: its schedule is shared in the same way.
    pub fn second_job_mut(&mut self) -> Option<&mut Self> {
        self.hires.as_deref_mut().map(|pass| &mut pass.job)
    }

    /// The steps of the whole schedule, and how many of them are skipped.
    ///
    /// AUTOMATIC1111 runs `int(min(strength, 0.999) * steps) + 1` steps of the schedule (`setup_img2img_steps` and
    /// `sample_img2img` of v1.10); in a second pass, whose steps it gets as `steps`, it runs all of them, the last ones of
    /// `int(steps / min(strength, 0.999))`. ComfyUI runs all of `steps`, the last ones of `int(steps / strength)` (`set_steps` of
    /// `comfy/samplers.py`).
    fn steps_of_rule(&self, rule: Rule, strength: f64) -> (usize, usize) {
        let last_of = |strength: f64| {
            let total = (self.steps as f64 / strength) as usize;
            (total, total.saturating_sub(self.steps))
        };
        match rule {
            Rule::Automatic1111 if self.is_second_pass() => last_of(strength.min(MOST_STRENGTH)),
            Rule::Automatic1111 => (self.steps, self.steps.saturating_sub(self.encoded_steps(strength) + 1)),
            _ => last_of(strength),
        }
    }

    /// `t_enc` of AUTOMATIC1111's `setup_img2img_steps`.
    fn encoded_steps(&self, strength: f64) -> usize {
        (strength.min(MOST_STRENGTH) * self.steps as f64) as usize
    }

    /// Refuses what a rule of another program is not known for.
    ///
    /// # Errors
    /// [`Error::Value`] names the option and what goes with the rule.
    pub fn check_rule(&self, model: &ModelFolder) -> Result<()> {
        let rule = self.image.rule;
        let refuse = |expected: &str| {
            Err(Error::Value { name: "rule", found: rule.id().into(), expected: format!("diffusers with {expected}") })
        };
        if rule == Rule::Comfy && self.refiner.is_some() {
            return refuse("`refiner`, or a1111");
        }
        if rule == Rule::Diffusers || self.init == Init::Noise {
            return Ok(());
        }
        let is_ddim = rule == Rule::Automatic1111 && self.sampler == SamplerKind::Ddim;
        if is_ddim && self.sampling.convention != Convention::Automatic1111 {
            return refuse("the sampler ddim, whose timesteps here are those of `convention` a1111");
        }
        let is_on_timesteps = self.sampler.is_on_timesteps() && !model.scheduler_config().is_flow();
        if (is_on_timesteps && !is_ddim) || self.sampler == SamplerKind::UniPc {
            return refuse(&format!("the sampler {}, or a sampler on noise levels such as euler", self.sampler));
        }
        if rule == Rule::Comfy && self.sampling.sigmas.is_some() {
            return refuse("`sigmas`, which say how many steps there are");
        }
        if is_ddim && self.image.soft_inpainting {
            let expected = "a sampler on noise levels such as euler with `soft_inpainting`".into();
            return Err(Error::Value { name: "sampler", found: self.sampler.id().into(), expected });
        }
        Ok(())
    }

    /// The reference images that the denoiser takes as tokens; none if the image is a control image, which it takes as channels.
    pub fn token_references(&self) -> &[Reference] {
        if self.extra_channels == ExtraChannels::None { &self.references } else { &[] }
    }

    /// The images that the text encoder sees with each text.
    pub fn text_images(&self) -> Vec<PromptImage> {
        self.references.iter().filter_map(|reference| reference.text.clone()).collect()
    }

    /// Refuses a job without a mask for a model that has no other use for its channels.
    pub(crate) fn check_extra_channels(&self, model: &ModelFolder) -> Result<()> {
        if self.extra_channels != ExtraChannels::PixelMask || self.init.is_masked() {
            return Ok(());
        }
        let (name, found) = if self.init.image().is_some() { ("mask", "missing") } else { ("init", "missing") };
        let expected =
            format!("an image with a `mask`, or with `extend`: {} fills in a part of an image", model.name());
        Err(Error::Value { name, found: found.into(), expected })
    }

    /// Replaces the initial latents by `init`.
    ///
    /// # Errors
    /// [`Error::Value`] if an image or a mask has another size than the job's images or the strength is out of range,
    /// [`Error::Scheduler`] if the strength leaves no step.
    pub fn with_init(&self, init: Init, model: &ModelFolder) -> Result<Self> {
        init.check(self.width, self.height)?;
        let job = Self { init, parsed: Parsed::default(), ..self.clone() };
        job.spans(model)?;
        Ok(job)
    }
}
