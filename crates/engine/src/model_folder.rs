//! A model folder in the diffusers layout, before its weights are loaded.

use std::path::{Path, PathBuf};

use kiln_clip::TextEncoderConfig;
use kiln_scheduler::SchedulerConfig;
use kiln_unet::UnetConfig;
use kiln_vae::VaeConfig;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::request::{MAX_STEPS, guidance, in_range, side};

/// How the parts of a model work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Stable Diffusion 1 and 2: one text encoder, its last layer steers.
    Sd,
    /// Stable Diffusion XL: two text encoders, their penultimate layers and a pooled text steer, with sizes.
    Sdxl,
}

/// What a model makes when nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Steps.
    pub steps: usize,
    /// Strength of the guidance.
    pub cfg_scale: f64,
}

/// The file with a model folder's own defaults; every key may be missing.
const DEFAULTS_FILE: &str = "kiln.json";

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DefaultsFile {
    width: Option<usize>,
    height: Option<usize>,
    steps: Option<usize>,
    cfg_scale: Option<f64>,
}

impl DefaultsFile {
    /// Refuses what a request would be refused for, which could only blame a flag that nobody gave.
    fn check(&self, multiple: usize) -> Result<()> {
        self.width.map(|width| side("`width`", width, multiple)).transpose()?;
        self.height.map(|height| side("`height`", height, multiple)).transpose()?;
        self.steps.map(|steps| in_range("`steps`", steps, 1, MAX_STEPS)).transpose()?;
        self.cfg_scale.map(|scale| guidance("`cfg_scale`", scale)).transpose()?;
        Ok(())
    }
}

/// A model folder: its configurations, read and checked.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    path: PathBuf,
    family: Family,
    zeros_for_no_negative: bool,
    text_encoders: Vec<TextEncoderConfig>,
    unet: UnetConfig,
    vae: VaeConfig,
    scheduler: SchedulerConfig,
    defaults: Defaults,
}

/// The folders of a text encoder and its tokenizer.
const TEXT_FOLDERS: [(&str, &str); 2] = [("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")];

impl ModelFolder {
    /// Reads the configurations of the model folder `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::Model`] name the file; the parts' own errors say what is impossible in it.
    pub fn open(path: &Path) -> Result<Self> {
        let looked_for = "a model folder in the diffusers layout (with model_index.json)";
        if path.is_file() {
            return Err(Error::model(path, format!("is a file, expected {looked_for}")));
        }
        if !path.is_dir() {
            let looked_for = looked_for.into();
            return Err(Error::NotFound { path: path.to_path_buf(), looked_for });
        }
        let index_path = path.join("model_index.json");
        let index: Value = parse(&index_path)?;
        let family = match index["_class_name"].as_str() {
            Some("StableDiffusionPipeline") => Family::Sd,
            Some("StableDiffusionXLPipeline") => Family::Sdxl,
            other => {
                let found = other.unwrap_or("missing");
                let problem =
                    format!("`_class_name` is {found}, expected StableDiffusionPipeline or StableDiffusionXLPipeline");
                return Err(Error::model(&index_path, problem));
            }
        };
        let zeros = index["force_zeros_for_empty_prompt"].as_bool();
        let encoders = if family == Family::Sdxl { 2 } else { 1 };
        let text_encoders = TEXT_FOLDERS[..encoders]
            .iter()
            .map(|(folder, _)| config(path, folder, "config.json", TextEncoderConfig::from_json))
            .collect::<Result<_>>()?;
        let unet = config(path, "unet", "config.json", UnetConfig::from_json)?;
        let vae = config(path, "vae", "config.json", VaeConfig::from_json)?;
        let scheduler = config(path, "scheduler", "scheduler_config.json", SchedulerConfig::from_json)?;
        let sample_size = parse::<Value>(&path.join("unet/config.json"))?["sample_size"].as_u64();
        let defaults = defaults(path, family, sample_size, vae.downscale())?;
        let model = Self {
            path: path.to_path_buf(),
            family,
            // diffusers' own default is true.
            zeros_for_no_negative: family == Family::Sdxl && zeros.unwrap_or(true),
            text_encoders,
            unet,
            vae,
            scheduler,
            defaults,
        };
        model.check_fit()?;
        Ok(model)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's name, which the pictures' metadata carry.
    pub fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// How the parts work together.
    pub fn family(&self) -> Family {
        self.family
    }

    /// What is made when nothing else is said.
    pub fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// Whether a missing negative prompt means conditioning of zeros (`force_zeros_for_empty_prompt` of SDXL) rather
    /// than the empty text, encoded.
    pub fn zeros_for_no_negative(&self) -> bool {
        self.zeros_for_no_negative
    }

    /// Sides of pictures are multiples of this: the pixels of one latent, a multiple of 8 as in every other tool.
    pub fn size_multiple(&self) -> usize {
        self.vae.downscale().max(8)
    }

    /// The schedule's configuration.
    pub fn scheduler_config(&self) -> &SchedulerConfig {
        &self.scheduler
    }

    /// The denoiser's configuration.
    pub fn unet_config(&self) -> &UnetConfig {
        &self.unet
    }

    /// The autoencoder's configuration.
    pub fn vae_config(&self) -> &VaeConfig {
        &self.vae
    }

    /// The text encoders' configurations.
    pub fn text_encoder_configs(&self) -> &[TextEncoderConfig] {
        &self.text_encoders
    }

    /// Layers that all text encoders have.
    pub(crate) fn text_layers(&self) -> usize {
        self.text_encoders.iter().map(|encoder| encoder.num_hidden_layers).min().unwrap_or_default()
    }

    /// The folders of text encoder `i` and of its tokenizer.
    pub(crate) fn text_folders(&self, i: usize) -> (PathBuf, PathBuf) {
        let (encoder, tokenizer) = TEXT_FOLDERS[i];
        (self.path.join(encoder), self.path.join(tokenizer))
    }

    /// An error of the schedule, with the folder's file where that is at fault rather than the request.
    pub(crate) fn scheduler_error(&self, error: kiln_scheduler::Error) -> Error {
        use kiln_scheduler::Error::{Json, UnknownClass, Unsupported, ZeroSignal};
        match error {
            Json(_) | UnknownClass { .. } | Unsupported { .. } | ZeroSignal { .. } => {
                Error::model(&self.path.join("scheduler/scheduler_config.json"), error)
            }
            other => other.into(),
        }
    }

    /// Refuses parts that do not fit together, before any weights are read.
    fn check_fit(&self) -> Result<()> {
        let unet_path = self.path.join("unet/config.json");
        let width: usize = self.text_encoders.iter().map(|encoder| encoder.hidden_size).sum();
        if let Some(dim) = self.unet.context_dim()
            && dim != width
        {
            let problem = format!("`cross_attention_dim` is {dim}, but the text encoders give {width} channels");
            return Err(Error::model(&unet_path, problem));
        }
        if let (Some(dim), Some(encoder)) = (self.unet.pooled_dim(), self.text_encoders.last()) {
            let pooled = encoder.pooled_size();
            if dim != pooled {
                let problem =
                    format!("the U-Net takes a pooled text of {dim} channels, but the text encoder gives {pooled}");
                return Err(Error::model(&unet_path, problem));
            }
        }
        let latents = self.vae.latent_channels;
        if self.unet.in_channels != latents || self.unet.out_channels != latents {
            let problem = format!(
                "`in_channels` is {} and `out_channels` {}, but the VAE has {latents} latent channels; models with \
                 more inputs need an image, which txt2img does not have",
                self.unet.in_channels, self.unet.out_channels
            );
            return Err(Error::model(&unet_path, problem));
        }
        Ok(())
    }
}

/// Reads one part's configuration; an error names its file.
fn config<T, E: std::fmt::Display>(
    path: &Path,
    folder: &str,
    name: &str,
    read: impl FnOnce(&str) -> std::result::Result<T, E>,
) -> Result<T> {
    let path = path.join(folder).join(name);
    read(&text(&path)?).map_err(|error| Error::model(&path, error))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&text(path)?).map_err(|error| Error::model(path, format!("is no valid JSON: {error}")))
}

fn text(path: &Path) -> Result<String> {
    if !path.exists() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(Error::NotFound {
            path: path.to_path_buf(),
            looked_for: format!("{name}, part of every model folder of the kind that model_index.json names"),
        });
    }
    std::fs::read_to_string(path).map_err(Error::read(path))
}

/// The folder's own defaults over those of its family.
fn defaults(path: &Path, family: Family, sample_size: Option<u64>, downscale: usize) -> Result<Defaults> {
    let file = path.join(DEFAULTS_FILE);
    let own: DefaultsFile = if file.exists() { parse(&file)? } else { DefaultsFile::default() };
    own.check(downscale.max(8)).map_err(|error| Error::model(&file, error))?;
    let side = sample_size.map_or(64, |size| size.min(2048) as usize) * downscale;
    Ok(Defaults {
        width: own.width.unwrap_or(side),
        height: own.height.unwrap_or(side),
        steps: own.steps.unwrap_or(20),
        cfg_scale: own.cfg_scale.unwrap_or(if family == Family::Sdxl { 5.0 } else { 7.0 }),
    })
}
