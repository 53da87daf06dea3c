//! A model, in a folder of the diffusers layout or in one file, before its weights are loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_families::{
    Component as ComponentSpec, ComponentKind, FamilyRef, ModelTraits, References, TextPart, of_class, runnable_labels,
};
use kiln_network::{DenoiserConfig, ExtraChannels, LatentSpec, TextWidths};
use kiln_scheduler::SchedulerConfig;
use kiln_unet::UnetConfig;
use kiln_vae::VaeConfig;
use serde_json::Value;

use crate::defaults::{Defaults, defaults};
use crate::distillation::Distillation;
use crate::error::{Error, Result, shortened};
use crate::file_kind::FileKind;
use crate::files::{ModelFiles, ModelOptions};
use crate::foreign::ForeignModel;
use crate::inspect::{FolderContent, content_of_folder};
use crate::latent_rgb::LatentRgb;
use crate::limits::MAX_SIDE;
use crate::text_stage::TextFacts;

/// Maximum characters of a value in a message.
const SHOWN: usize = 100;
/// The file that makes a folder one of diffusers' layout.
pub(crate) const INDEX: &str = "model_index.json";
const SCHEDULER_CONFIG: &str = "scheduler/scheduler_config.json";

/// A model folder, or a model in one file: its configurations, read and checked.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    path: PathBuf,
    options: ModelOptions,
    files: ModelFiles,
    family: FamilyRef,
    zeros_for_no_negative: bool,
    texts: Vec<TextPart>,
    text_facts: TextFacts,
    denoiser: Arc<dyn DenoiserConfig>,
    latents: LatentSpec,
    extra_channels: ExtraChannels,
    vae: VaeConfig,
    scheduler: SchedulerConfig,
    defaults: Defaults,
    references: Option<References>,
    latent_rgb: Option<LatentRgb>,
}

impl ModelFolder {
    /// Reads the configurations of the model at `path`: a folder in the diffusers layout, or a checkpoint file.
    ///
    /// # Errors
    /// [`Error::Files`] and [`Error::Model`] name the file; the errors of components name the invalid value.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &ModelOptions::default())
    }

    /// Opens a model with components from other files.
    ///
    /// # Errors
    /// Like [`Self::open`], and errors of those components.
    pub fn open_with(path: &Path, options: &ModelOptions) -> Result<Self> {
        if !path.exists() {
            let looked_for =
                "a model folder in the diffusers layout (with model_index.json), or a checkpoint file".into();
            return Err(Error::not_found(path, looked_for));
        }
        let mut files = ModelFiles::open(path, options)?;
        let index_path = files.config_path(INDEX);
        if files.is_folder() && !index_path.exists() {
            return Err(no_model(path, &index_path));
        }
        let index: Value = parse(&files, INDEX)?;
        let class = index["_class_name"].as_str();
        let family = match class.and_then(of_class) {
            Some(family) => family,
            None => {
                if let Some(model) = class.and_then(ForeignModel::of_class).filter(|_| files.has_own_configs()) {
                    return Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() });
                }
                let found = class.map_or("missing".into(), |class| shortened(class, SHOWN));
                let problem = match path.is_file() && !files.has_own_configs() {
                    true => format!(
                        "is a model for diffusers' {found}, which takes other inputs than Kiln's models; Kiln runs {}",
                        runnable_labels()
                    ),
                    false => format!(
                        "`_class_name` is {found}, expected a pipeline of diffusers for {}, such as StableDiffusionPipeline",
                        runnable_labels()
                    ),
                };
                return Err(Error::model(&index_path, problem));
            }
        };
        let named = family.class_of_name(&name_of(path)).filter(|_| path.is_file() && !files.has_own_configs());
        let class = named.or(class);
        let zeros = index["force_zeros_for_empty_prompt"].as_bool();
        files.set_texts(texts_of(&index, family, options)?);
        let text = |&component: &&'static ComponentSpec| -> Result<TextPart> {
            let config = config(&files, &component.config(), |json| family.text_encoder(component, json))?;
            let config = if files.is_in_file(component) { family.text_in_file(component, config) } else { config };
            let config = family.text_of_class(class.unwrap_or_default(), config);
            Ok(TextPart { component, config, tokenizer: None })
        };
        let texts = files.texts().iter().map(text).collect::<Result<Vec<_>>>()?;
        let widths: Vec<usize> = texts.iter().map(|text| text.config.width()).collect();
        files.replace_text_encoders(&widths)?;
        let denoiser_config = files.set_family(family);
        let base = config(&files, &denoiser_config, |json| family.denoiser(json, None))?;
        let text_facts = TextFacts::of(family.text_stage(&texts, base.as_ref())?.as_ref());
        let denoiser = config(&files, &denoiser_config, |json| family.denoiser(json, Some(text_facts.pooled)))?;
        let denoiser = files.denoiser_config(family, denoiser, (text_facts.pooled, options.prediction))?;
        let network = denoiser.build();
        let (latents, extra_channels) = (network.latents(), network.extra_channels());
        let vae = config(&files, "vae/config.json", VaeConfig::from_json)?;
        let mut scheduler = config(&files, SCHEDULER_CONFIG, SchedulerConfig::from_json)?;
        if family.has_stable_diffusion_schedule() {
            scheduler = scheduler.for_stable_diffusion();
        }
        if let Some(prediction) = options.prediction {
            if scheduler.is_flow() {
                let (found, expected) =
                    (prediction.id().into(), "none: this model predicts the velocity of a flow".into());
                return Err(Error::Value { field: "prediction", found, expected });
            }
            scheduler.prediction_type = Some(prediction.id().into());
        }
        let json: Value = parse(&files, &denoiser_config)?;
        let size = sample_size(&json["sample_size"], family.sample_size(), vae.downscale())
            .map_err(|problem| Error::model(&files.config_path(&denoiser_config), problem))?;
        let traits = ModelTraits {
            class: class.unwrap_or_default(),
            name: &name_of(path),
            takes_guidance: denoiser.takes_guidance(),
            extra_channels,
            is_distilled: index["is_distilled"].as_bool(),
            shift: scheduler.shift,
        };
        let references = family.references_of(&traits);
        let (defaults, latent_rgb) = defaults(&files, family, &traits, size, &vae)?;
        let model = Self {
            path: path.to_path_buf(),
            options: options.clone(),
            files,
            family,
            zeros_for_no_negative: family.zeros_for_no_negative(zeros),
            texts,
            text_facts,
            denoiser,
            latents,
            extra_channels,
            vae,
            scheduler,
            defaults,
            references,
            latent_rgb,
        };
        model.check_fit()?;
        Ok(model)
    }

    /// The path of the folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the folder, or of the file without its extension, as in image metadata.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }

    /// The overrides of its files.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// The pipeline family.
    pub fn family(&self) -> FamilyRef {
        self.family
    }

    /// The defaults of a request.
    pub fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// How it takes reference images; `None` if it takes none.
    pub fn references(&self) -> Option<References> {
        self.references.filter(|_| !self.takes_mask()) // a model with channels for a masked image has no place for others
    }

    /// How latents become colors in a preview: the model's own `latent_rgb`, else that of its family's usual autoencoder.
    pub fn latent_rgb(&self) -> Option<&LatentRgb> {
        self.latent_rgb.as_ref()
    }

    /// Whether an omitted negative prompt means zero embeddings (`force_zeros_for_empty_prompt` of SDXL) instead of the
    /// encoded empty text.
    pub fn zeros_for_no_negative(&self) -> bool {
        self.zeros_for_no_negative
    }

    /// Width and height of images are multiples of this: the size of a latent pixel or of a denoiser's patch, and a multiple of
    /// 8 as in other programs.
    pub fn size_multiple(&self) -> usize {
        (self.vae.downscale() * self.latents.multiple).max(8)
    }

    /// The schedule's configuration.
    pub fn scheduler_config(&self) -> &SchedulerConfig {
        &self.scheduler
    }

    /// The denoiser's configuration.
    pub fn denoiser_config(&self) -> &dyn DenoiserConfig {
        self.denoiser.as_ref()
    }

    /// The denoiser's configuration, to keep.
    pub(crate) fn shared_denoiser_config(&self) -> Arc<dyn DenoiserConfig> {
        self.denoiser.clone()
    }

    /// The latents of the denoiser.
    pub fn latents(&self) -> LatentSpec {
        self.latents
    }

    /// The autoencoder's configuration.
    pub fn vae_config(&self) -> &VaeConfig {
        &self.vae
    }

    /// The text encoders with their configurations, without tokenizers.
    pub fn texts(&self) -> &[TextPart] {
        &self.texts
    }

    /// The values of the text stage that decide before it is used.
    pub(crate) fn text_facts(&self) -> TextFacts {
        self.text_facts
    }

    /// Whether the denoiser has the scale of classifier-free guidance as an input, because it was distilled with guidance. It then
    /// runs without an unconditional half, and negative prompts have no effect.
    pub fn has_guidance_inside(&self) -> bool {
        self.denoiser.takes_guidance() && self.defaults.guidance.is_none()
    }

    /// Whether the denoiser takes a guidance scale of its own with classifier-free guidance, as FLUX.1 dev.
    pub fn takes_guidance(&self) -> bool {
        self.denoiser.takes_guidance() && self.defaults.guidance.is_some()
    }

    /// How it was distilled, and the number of steps that it was made for, where its name or its notes say so. Latent
    /// consistency models with guidance inside are known by their networks.
    pub fn distillation(&self) -> Option<(Distillation, Option<usize>)> {
        let by_name = Distillation::in_name(&self.name());
        by_name.or_else(|| self.has_guidance_inside().then_some((Distillation::Lcm, None)))
    }

    /// Whether it is a refiner of SDXL, which continues images and begins none: its denoiser takes an aesthetic score.
    pub fn is_refiner(&self) -> bool {
        self.unet_config().is_some_and(UnetConfig::takes_score)
    }

    /// Whether the denoiser takes a mask and the latents of a masked image besides latents: an inpainting model.
    pub fn takes_mask(&self) -> bool {
        self.extra_channels.has_mask()
    }

    /// The meaning of the channels that the denoiser takes besides the latents.
    pub fn extra_channels(&self) -> ExtraChannels {
        self.extra_channels
    }

    /// The number of layers that all text encoders have, of those that can skip some.
    pub fn text_layers(&self) -> usize {
        self.texts.iter().filter_map(|text| text.config.layers_to_skip()).min().unwrap_or_default()
    }

    /// The location of its weights.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// An error of the schedule; it names the folder's file if that is the cause, and not the request.
    pub fn scheduler_error(&self, error: kiln_scheduler::Error) -> Error {
        use kiln_scheduler::Error::{Json, UnknownClass, Unsupported, ZeroSignal};
        match error {
            Json(_) | UnknownClass { .. } | Unsupported { .. } | ZeroSignal { .. } => {
                Error::model(&self.files.config_path(SCHEDULER_CONFIG), error)
            }
            other => other.into(),
        }
    }

    /// Fails for components that do not match, before any weights are read.
    fn check_fit(&self) -> Result<()> {
        let path = self.files.config_path(&self.files.denoiser().config());
        let label = self.files.denoiser().kind.label();
        let TextFacts { context, pooled, .. } = self.text_facts;
        let TextWidths { context: takes, pooled: takes_pooled } = self.denoiser.text();
        if let Some(dim) = takes.filter(|&dim| dim != context) {
            let problem = match self.unet_config() {
                Some(_) => format!("`cross_attention_dim` is {dim}, but the text encoders have {context} channels"),
                None => format!("the {label} takes tokens of {dim} channels, but the text encoders have {context}"),
            };
            return Err(Error::model(&path, problem));
        }
        if let Some(dim) = takes_pooled.filter(|&dim| dim != pooled) {
            let problem =
                format!("the {label} takes a pooled text of {dim} channels, but the text encoder gives {pooled}");
            return Err(Error::model(&path, problem));
        }
        let latents = self.vae.latent_channels;
        let LatentSpec { channels, extra_channels, .. } = self.latents;
        if channels != latents || self.extra_channels.count(latents, self.vae.downscale()) != Some(extra_channels) {
            let inputs = self.unet_config().map(|unet| {
                format!("`in_channels` is {} and `out_channels` {}: ", unet.in_channels, unet.out_channels)
            });
            let inputs = inputs.unwrap_or_default();
            let problem = format!(
                "{inputs}the {label} takes {channels} latent channels and {extra_channels} others, but the VAE has {latents} \
                 latent channels; besides latents a {label} may take {}",
                match self.unet_config() {
                    Some(_) => "a mask and a masked image, and nothing else",
                    None => "a mask and a masked image, or a control image",
                }
            );
            return Err(Error::model(&path, problem));
        }
        Ok(())
    }
}

/// The name of the model at `path`: see [`ModelFolder::name`].
fn name_of(path: &Path) -> String {
    if let Some(name) = kiln_hub::cached_name(path) {
        return name; // the folder is named after a commit, and a file is a link
    }
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// The error for a folder without the file `index`: what it has instead.
fn no_model(path: &Path, index: &Path) -> Error {
    const SHOWN: usize = 8;
    match content_of_folder(path) {
        FolderContent::Network(FileKind::Foreign(model)) => {
            Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() }
        }
        FolderContent::Network(kind) => Error::OtherKind { path: path.to_path_buf(), kind },
        // A model without its index has the folders of its networks.
        FolderContent::List(names) if !names.is_empty() && !names.iter().any(|name| name == "unet") => {
            let more = names.len().saturating_sub(SHOWN);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let names = names[..names.len().min(SHOWN)].join(", ");
            Error::model(path, format!("is a folder of files or models, expected one model; it has {names}{more}"))
        }
        FolderContent::List(_) => {
            let looked_for = format!("{INDEX}, which a model in the diffusers layout has");
            Error::not_found(index.to_path_buf(), looked_for)
        }
    }
}

/// The text encoders of a model: of its family's those that its index names, or all if it names none. `options` may leave out T5.
fn texts_of(index: &Value, family: FamilyRef, options: &ModelOptions) -> Result<Vec<&'static ComponentSpec>> {
    let texts = family.text_components().into_iter();
    let (named, others): (Vec<_>, Vec<_>) = texts.partition(|text| !index[text.folder][0].is_null());
    let mut texts = if named.is_empty() { others } else { named };
    if options.no_t5 {
        if !family.texts_are_optional() {
            let expected = format!("false: {} needs all of its text encoders", family.label());
            return Err(Error::Value { field: "no_t5", found: "true".into(), expected });
        }
        texts.retain(|text: &&ComponentSpec| text.kind != ComponentKind::T5);
    }
    Ok(texts)
}

/// Reads the configuration of a component; errors name its file.
fn config<T, E: std::fmt::Display>(
    files: &ModelFiles,
    name: &str,
    read: impl FnOnce(&str) -> std::result::Result<T, E>,
) -> Result<T> {
    read(&files.config(name)?).map_err(|error| Error::model(&files.config_path(name), error))
}

fn parse<T: serde::de::DeserializeOwned>(files: &ModelFiles, name: &str) -> Result<T> {
    json(&files.config(name)?, &files.config_path(name))
}

pub(crate) fn json<T: serde::de::DeserializeOwned>(text: &str, path: &Path) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::model(path, format!("is not valid JSON: {error}")))
}

/// Width and height in pixels from a denoiser's `sample_size`: the side in latents, or a list of height and width; `usual` if
/// there is none.
fn sample_size(value: &Value, usual: usize, downscale: usize) -> std::result::Result<(usize, usize), String> {
    let most = MAX_SIDE / downscale;
    let side = |value: &Value| {
        let latents = value.as_u64().and_then(|latents| usize::try_from(latents).ok());
        latents.filter(|latents| (1..=most).contains(latents)).map(|latents| latents * downscale)
    };
    let size = match value {
        Value::Null => Some((usual * downscale, usual * downscale)),
        Value::Array(sides) => match sides.as_slice() {
            [height, width] => side(width).zip(side(height)),
            _ => None,
        },
        one => side(one).map(|side| (side, side)),
    };
    size.ok_or_else(|| {
        let found = shortened(&value.to_string(), SHOWN);
        format!("`sample_size` is {found}, expected a number from 1 to {most}, or a list of two: height and width")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sample_size_is_a_number_or_two() {
        assert_eq!(sample_size(&Value::Null, 64, 8), Ok((512, 512)));
        assert_eq!(sample_size(&json!(96), 64, 8), Ok((768, 768)));
        assert_eq!(sample_size(&json!([32, 64]), 64, 8), Ok((512, 256)), "height and width in latents");
        assert_eq!(sample_size(&json!(2048), 64, 8), Ok((16384, 16384)));
        let wrong = [
            json!(0),
            json!(2049),
            json!(1_000_000_000_000_000_000u64),
            json!(-1),
            json!(1e308),
            json!("x"),
            json!({}),
            json!(true),
            json!([]),
            json!([64]),
            json!([64, 64, 64]),
            json!([64, "x"]),
            json!([64, 0]),
        ];
        for value in wrong {
            let message = sample_size(&value, 64, 8).unwrap_err();
            assert!(
                message.starts_with(&format!("`sample_size` is {value}, expected a number from 1 to 2048")),
                "{message}"
            );
        }
        let message = sample_size(&json!("x".repeat(100_000)), 64, 8).unwrap_err();
        assert!(message.len() < 300, "a configuration is not printed back whole");
    }
}
