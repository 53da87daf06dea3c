//! Files of CLIP's image encoders, which IP-Adapters take.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_clip::{ImageFeatures, VisionConfig, VisionEncoder};
use kiln_unet::PromptFeatures;
use kiln_weights::{Checkpoint, ParamSource, mismatches, open_component};

use crate::error::{Error, Result};
use crate::hub;

/// A tensor that every CLIP image encoder has.
const PATCHES: &str = "vision_model.embeddings.patch_embedding.weight";

/// An image encoder: a folder in the layout of transformers, or a file.
#[derive(Clone)]
pub struct ImageEncoderFile {
    path: PathBuf,
    config: VisionConfig,
    source: Arc<dyn ParamSource>,
}

impl ImageEncoderFile {
    /// Opens an image encoder: a folder with `config.json` and weights, or a file with the names of transformers. Of a file
    /// without a `config.json` next to it the configuration follows from the shapes. Only the table of the tensors is read.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Model`] and [`Error::Clip`] if it is something else,
    /// [`Error::Weights`] if it cannot be read or its tensors do not match.
    pub fn open(path: &Path) -> Result<Self> {
        let path = hub::cached(path)?.unwrap_or_else(|| path.to_path_buf());
        if !path.exists() {
            let looked_for = "`encoder` of an IP-Adapter: a CLIP image encoder's folder or file".into();
            return Err(Error::not_found(path, looked_for));
        }
        let (config, source): (VisionConfig, Arc<dyn ParamSource>) = if path.is_dir() {
            let file = path.join("config.json");
            if !file.exists() {
                return Err(Error::not_found(file, "the configuration of a CLIP image encoder".into()));
            }
            (VisionConfig::open(&path)?, open_component(&path)?.into())
        } else {
            let source: Arc<dyn ParamSource> = Arc::new(Checkpoint::open(&path)?);
            if source.info(PATCHES).is_none() {
                return Err(Error::model(&path, format!("has no tensor `{PATCHES}`, expected a CLIP image encoder")));
            }
            let folder = path.parent().unwrap_or(Path::new("."));
            let own = folder.join("config.json").exists().then(|| VisionConfig::open(folder).ok()).flatten();
            let config = match own {
                Some(config) => config,
                None => VisionConfig::from_shapes(source.as_ref()).map_err(|error| Error::model(&path, error))?,
            };
            (config, source)
        };
        let encoder = VisionEncoder::new(config.clone())?;
        match mismatches(encoder.segments(), source.as_ref()).into_iter().next() {
            Some(error) => Err(error.into()),
            None => Ok(Self { path, config, source }),
        }
    }

    /// The folder or the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its configuration.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// Its weights, under the names that the network declares.
    pub fn weights(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }

    /// Whether it gives these features with `dim` channels.
    pub fn fits(&self, features: PromptFeatures, dim: usize) -> bool {
        match encoded(features) {
            Some(ImageFeatures::Embedding) => self.config.projection_dim == dim,
            Some(ImageFeatures::Penultimate) => self.config.hidden_size == dim,
            None => true,
        }
    }

    /// A description in words.
    pub(crate) fn described(&self) -> String {
        let VisionConfig { hidden_size, projection_dim, .. } = self.config;
        format!("an image encoder of {hidden_size} channels with embeddings of {projection_dim}")
    }

    /// The encoder that gives these features with `dim` channels, in words.
    pub(crate) fn needed(features: PromptFeatures, dim: usize) -> String {
        let is_embedding = features == PromptFeatures::Embedding;
        let known = match (is_embedding, dim) {
            (true, 1024) | (false, 1280) => " (OpenCLIP's ViT-H/14)",
            (true, 1280) | (false, 1664) => " (OpenCLIP's ViT-bigG/14)",
            (true, 768) | (false, 1024) => " (OpenAI's ViT-L/14)",
            _ => "",
        };
        match is_embedding {
            true => format!("an image encoder with embeddings of {dim} channels{known}"),
            false => format!("an image encoder of {dim} channels{known}"),
        }
    }
}

/// The features of an image encoder for an IP-Adapter; `None` if it needs none.
pub fn encoded(features: PromptFeatures) -> Option<ImageFeatures> {
    match features {
        PromptFeatures::Embedding => Some(ImageFeatures::Embedding),
        PromptFeatures::Tokens | PromptFeatures::IdentityAndTokens => Some(ImageFeatures::Penultimate),
        PromptFeatures::Identity => None,
    }
}
