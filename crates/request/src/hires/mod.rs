//! Hires fix: the images of a first pass are enlarged and generated again in part, in a second pass of image-to-image.
//!
//! Sources of the rules: AUTOMATIC1111 v1.10 (`StableDiffusionProcessingTxt2Img` of `modules/processing.py`), diffusers 0.42
//! (the image-to-image pipelines), ComfyUI (`comfy/samplers.py`).

mod enlarge_by;
mod size;

use std::path::PathBuf;

use kiln_files::check_folder;
use kiln_models::limits::MAX_SIDE;
use kiln_models::{ExtraChannels, ModelFolder};
use kiln_scheduler::{SamplerKind, SigmaSchedule};
use kiln_upscale::{NetworkConfig, Upscaler};
use serde::Serialize;

use self::size::{Asked, Sizes};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::init::{Init, InitLatents};
use crate::input::Rule;
use crate::job::Job;
use crate::limits::side;
use crate::lora::{beside_tags, tagged};
use crate::options::{ImageOptions, OPTIONS, OptionGroup, OptionValue, Request, sampling, set_sampling};
use crate::prompts::Parsed;
use crate::upscaler::{OpenUpscaler, UpscalerChoice};
pub use enlarge_by::{HiresUpscaler, LatentFilter};

/// The strength where a request has none: the default of AUTOMATIC1111's page.
const STRENGTH: f64 = 0.7;

/// The second pass of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SecondPass {
    /// The second pass: a job of the larger size, whose images begin with those of the first pass.
    pub job: Job,
    /// The upscaler of the first pass's results; its file is a path that exists.
    pub upscaler: HiresUpscaler,
    /// The network in that file.
    #[serde(skip)]
    pub network: Option<NetworkConfig>,
    /// Width and height in pixels to which results are enlarged, before the middle is cut out of their latents.
    pub enlarged: (usize, usize),
    /// The fields of the request that asked for it, files named without their folders.
    #[serde(skip)]
    pub(crate) request: Request,
}

impl Job {
    /// The second pass, if there is one.
    pub fn second_pass(&self) -> Option<&SecondPass> {
        self.hires.as_deref()
    }

    /// Width and height of the images in pixels: those of the last pass.
    pub fn final_size(&self) -> (usize, usize) {
        let job = self.second_pass().map_or(self, |pass| &pass.job);
        (job.width, job.height)
    }

    /// The jobs of all passes, the first one's first.
    pub fn passes(&self) -> impl Iterator<Item = &Job> {
        [self].into_iter().chain(self.second_pass().map(|pass| &pass.job))
    }

    /// Calls of the denoiser for a batch, over all passes.
    ///
    /// # Errors
    /// See [`Job::evaluations`].
    pub fn evaluations_of_passes(&self, model: &ModelFolder) -> Result<usize> {
        self.passes().map(|job| job.evaluations(model)).sum()
    }
}

impl SecondPass {
    /// Whether the first pass's pixels are enlarged, and not its latents.
    pub fn takes_pixels(&self) -> bool {
        matches!(self.upscaler, HiresUpscaler::Pixels(_))
    }

    /// The upscaler's file, if it is a network.
    pub fn file(&self) -> Option<PathBuf> {
        self.upscaler.file().map(PathBuf::from)
    }

    /// See [`Job::shared`].
    pub(crate) fn shared(&self) -> Self {
        Self { job: self.job.shared(), request: Request::default(), ..self.clone() }
    }

    /// Writes its fields into the request that makes image `index` again.
    pub(crate) fn write(&self, index: usize, request: &mut Request) {
        for row in OPTIONS.iter().filter(|row| row.group == OptionGroup::Hires || row.name == "rule") {
            row.copy(&self.request, request);
        }
        let prompts = self.job.prompts(index);
        if self.request.hires_prompt.is_some() {
            request.hires_prompt = Some(beside_tags(&self.job.prompt, &prompts.prompt, &self.job.loras).0);
        }
        if self.request.hires_negative_prompt.is_some() {
            request.hires_negative_prompt = prompts.negative_prompt.clone();
        }
    }
}

impl Request {
    /// Whether it asks for a second pass.
    pub fn is_hires(&self) -> bool {
        self.hires_scale.is_some() || self.hires_size.is_some()
    }

    /// The second pass of `first`, whose request this is.
    ///
    /// # Errors
    /// [`Error::Value`] for options that do not go together or are out of range, [`Error::Files`] and [`Error::Upscale`] for
    /// the upscaler's file, [`Error::Scheduler`] where the strength leaves no step.
    pub(crate) fn second_pass(&self, first: &Job, model: &ModelFolder) -> Result<Option<Box<SecondPass>>> {
        let multiple = model.size_multiple();
        let folder = self.upscaler_dir.as_deref();
        folder.map_or(Ok(()), |folder| check_folder(folder, "`upscaler_dir`, a folder with upscalers"))?;
        let Some(asked) = self.asked_size(multiple)? else { return Ok(None) };
        if self.init.is_some() {
            let (name, found) = self.size_option();
            let expected = "none with `init`: hires fix belongs to text-to-image".into();
            return Err(Error::Value { name, found, expected });
        }
        if let Some(refiner) = &first.refiner {
            let expected = "none with a second pass: leave out `hires_scale` and `hires_size`, or the refiner".into();
            return Err(Error::Value { name: "refiner", found: refiner.model().name(), expected });
        }
        let strength = self.hires_strength.unwrap_or(STRENGTH);
        if strength <= 0.0 {
            let expected = "more than 0 and at most 1".into();
            return Err(Error::Value { name: "hires_strength", found: format!("{strength:?}"), expected });
        }
        let Sizes { enlarged, target: (width, height) } = Sizes::new(asked, (first.width, first.height), multiple);
        if enlarged.0.max(enlarged.1) > MAX_SIDE {
            let (name, found) = self.size_option();
            let expected =
                format!("less: both sides are at most {MAX_SIDE} pixels, and here {}x{}", enlarged.0, enlarged.1);
            return Err(Error::Value { name, found, expected });
        }
        let (sampler, scheduler, sampling) = self.second_sampler(first);
        let is_on_timesteps = sampler.is_on_timesteps() && !model.scheduler_config().is_flow();
        let rule = self.rule.unwrap_or(match is_on_timesteps || sampler == SamplerKind::UniPc {
            true => Rule::Diffusers, // AUTOMATIC1111 has other rules for these
            false => Rule::Automatic1111,
        });
        let prompt = self.hires_prompt.as_ref().filter(|prompt| !prompt.is_empty()).unwrap_or(&first.prompt).clone();
        let mut loras = self.loras.clone();
        loras.extend(tagged(&prompt)?);
        let negative_prompt = self.hires_negative_prompt.clone().filter(|prompt| !prompt.is_empty());
        let job = Job {
            negative_prompt: negative_prompt.or_else(|| first.negative_prompt.clone()),
            prompt,
            width,
            height,
            steps: self.hires_steps.unwrap_or(first.steps),
            cfg_scale: self.strength_for(self.hires_cfg_scale.unwrap_or(first.cfg_scale), model, &loras, sampler),
            cfg_schedule: first.cfg_schedule.clone().filter(|_| self.hires_cfg_scale.is_none()),
            sampler,
            scheduler,
            sampling,
            loras,
            init: Init::FirstPass {
                strength,
                // `calculate_hr_conds` counts the steps of prompts' schedules on from those of the first pass.
                steps: (rule == Rule::Automatic1111).then(|| first.prompt_steps().count()),
            },
            image: ImageOptions {
                rule,
                strength,
                // AUTOMATIC1111 samples with a generator that no seed sets.
                init_noise: (rule != Rule::Diffusers).then_some(InitLatents::Mean),
                ..ImageOptions::default()
            },
            controls: self.controls_of_second_pass((width, height), rule)?,
            references: match first.extra_channels {
                ExtraChannels::Control => self.prepare_references(model, (width, height), None)?,
                _ => first.references.clone(),
            },
            parsed: Parsed::default(),
            ..first.clone()
        };
        job.check_rule(model)?;
        job.check_block_cache("hires_steps")?;
        job.check_regions(model)?;
        job.schedule(model)?;
        let (upscaler, network) = self.opened_upscaler((first.width, first.height), enlarged)?;
        let request = Request {
            hires_upscaler: Some(upscaler.without_folder()),
            hires_strength: Some(strength),
            upscaler_dir: None,
            ..self.clone()
        };
        Ok(Some(Box::new(SecondPass { job, upscaler, network, enlarged, request })))
    }

    /// The control networks with their images in the size of the second pass.
    fn controls_of_second_pass(&self, size: (usize, usize), rule: Rule) -> Result<Vec<Control>> {
        let of_rule = |control: Control| {
            let is_canny = |name: &str| name.eq_ignore_ascii_case("canny");
            match control.using.preprocess.as_deref().is_some_and(is_canny) && rule == Rule::Automatic1111 {
                true => Control { using: control.using.with_thin_edges_enlarged(), ..control },
                false => control,
            }
        };
        Ok(self.prepare_controls(size, None)?.into_iter().map(of_rule).collect())
    }

    /// The option that says the size, and its value as a message shows it.
    fn size_option(&self) -> (&'static str, String) {
        match self.hires_size {
            Some(_) => ("hires_size", self.hires_size.shown()),
            None => ("hires_scale", self.hires_scale.shown()),
        }
    }

    /// The requested size; `None` without a second pass.
    fn asked_size(&self, multiple: usize) -> Result<Option<Asked>> {
        match (self.hires_scale, self.hires_size) {
            (Some(_), Some((width, height))) => {
                let (found, expected) = (format!("{width}x{height}"), "none, or no `hires_scale`".into());
                Err(Error::Value { name: "hires_size", found, expected })
            }
            (Some(scale), None) => Ok(Some(Asked::Scale(scale))),
            (None, Some((width, height))) => {
                side("hires_size", width, multiple)?;
                side("hires_size", height, multiple)?;
                Ok(Some(Asked::Size(width, height)))
            }
            (None, None) => {
                let mut rows =
                    OPTIONS.iter().filter(|row| row.group == OptionGroup::Hires && row.name != "upscaler_dir");
                match rows.find(|row| !row.value(self).is_default()) {
                    None => Ok(None),
                    Some(row) => {
                        let expected = "`hires_scale` or `hires_size` too, the size of the second pass".into();
                        Err(Error::Value { name: row.name, found: row.value(self).shown(), expected })
                    }
                }
            }
        }
    }

    /// The sampler of the second pass with its schedule and options; what the first pass's options have for another sampler is
    /// left out, and so are its noise levels.
    fn second_sampler(&self, first: &Job) -> (SamplerKind, SigmaSchedule, kiln_scheduler::SamplerOptions) {
        let sampler = self.hires_sampler.map_or(first.sampler, |sampler| sampler.kind);
        let named = self.hires_sampler.and_then(|sampler| sampler.schedule);
        let scheduler = self.hires_scheduler.or(named).unwrap_or(first.scheduler);
        let mut request = Request { sampler: Some(sampler.into()), scheduler, sigmas: None, ..self.clone() };
        set_sampling(&mut request, &first.sampling);
        request.sigmas = None;
        if (sampler, scheduler) != (first.sampler, first.scheduler) {
            request.drop_unfit();
        }
        (sampler, scheduler, sampling(&request))
    }

    /// The upscaler, its file found and opened, for images of `size` that are enlarged to `target`.
    fn opened_upscaler(
        &self,
        size: (usize, usize),
        target: (usize, usize),
    ) -> Result<(HiresUpscaler, Option<NetworkConfig>)> {
        let upscaler = self.hires_upscaler.clone().unwrap_or_default();
        let HiresUpscaler::Pixels(choice) = &upscaler else { return Ok((upscaler, None)) };
        let open = OpenUpscaler::open(choice, self.upscaler_dir.as_deref()).map_err(with_latents)?;
        open.passes([size.0, size.1], [target.0, target.1]).map_err(|problem| Error::Value {
            name: "hires_upscaler",
            found: upscaler.to_string(),
            expected: format!("a smaller size: {problem}"),
        })?;
        Ok(match (open.path(), open.upscaler().map(Upscaler::config)) {
            (Some(path), Some(config)) => (HiresUpscaler::Pixels(UpscalerChoice::File(path.into())), Some(*config)),
            _ => (upscaler, None),
        })
    }
}

/// The error of a file that is not there, with the names that only a second pass has.
fn with_latents(error: Error) -> Error {
    match error {
        Error::Files(kiln_files::Error::NotFound { path, looked_for }) => {
            let latents = LatentFilter::ALL.map(LatentFilter::id).join(", ");
            Error::not_found(path, format!("{looked_for}, and for latents {latents}"))
        }
        other => other,
    }
}
