//! Image prompts (IP-Adapter, arXiv 2308.06721): each cross-attention attends to the tokens of an image, too, with keys and
//! values of its own, and both results are added.
//!
//! [`ImagePromptNet`] makes the keys and values of all layers once for an image. The network itself gets them with its other
//! conditions, so that its weights stay as they are.
//!
//! `unet/image_prompt` has the networks of IP-Adapters: from an image's features to tokens, and from tokens to the keys
//! and values of each cross-attention layer. They run once for a group of images (`pipeline/prompt_inputs.rs`, the
//! stage `image-prompt`), with CLIP's image encoder (`clip/vision`) before them, and leave memory. A hook of the
//! cross-attention (`unet/image_prompt/keys.rs`) adds the attention to them. What a file is, `models/ip_adapter.rs`
//! decides from its tensors. The text's keys and values take the same way where nothing streams
//! (`GuidedStep::prepared`): they are inputs of a recorded step.

mod config;
mod keys;
mod projection;

use kiln_nn::{Linear, TensorLike};
use kiln_weights::{SegmentModule, Segments};

pub use config::{FaceConfig, ImagePromptConfig, Projection, PromptFeatures, ResamplerConfig};
pub(crate) use keys::CrossKeys;
pub use keys::{ImagePrompt, KeysValues};

use crate::config::UnetConfig;
use crate::error::{Error, Result};
use config::layer_name;
use projection::ProjectionNet;

/// The network of an IP-Adapter. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct ImagePromptNet {
    config: ImagePromptConfig,
    segments: Segments,
    projection: ProjectionNet,
    /// In the order of the file.
    layers: Vec<SegmentModule<Layer>>,
    /// The number of each of them in the order in which they run.
    order: Vec<usize>,
}

/// The keys and values of one cross-attention layer.
struct Layer {
    to_k: Linear,
    to_v: Linear,
}

/// What an IP-Adapter takes, for each of `b` rows.
#[derive(Debug, Clone)]
pub struct PromptInput<T> {
    /// The image encoder's embedding `(b, embed_dim)`, or its tokens `(b, t, embed_dim)`.
    pub features: Option<T>,
    /// The vector of a face's identity, `(b, embed_dim)`.
    pub identity: Option<T>,
    /// Whether FaceID Plus adds the identity's tokens to its result, as files of version 2 were trained.
    pub shortcut: bool,
}

impl ImagePromptNet {
    /// Declares the network that `config` describes, for a U-Net of the configuration `unet`.
    ///
    /// # Errors
    /// [`Error::ImagePrompt`] where they do not go together.
    pub fn new(config: ImagePromptConfig, unet: &UnetConfig) -> Result<Self> {
        if !config.fits(unet) {
            let (found, layers) = (config.layers.len(), unet.cross_layers().len());
            let text = unet.context_dim().unwrap_or(0);
            return Err(Error::ImagePrompt(format!(
                "is for {found} cross-attention layers and text of {} channels, but the U-Net has {layers} and {text}",
                config.context_dim
            )));
        }
        let mut segments = Segments::default();
        let context_dim = config.context_dim;
        let projection = ProjectionNet::new(&mut segments, &config.projection, context_dim);
        let layer = |(i, &channels): (usize, &usize)| {
            let name = layer_name(i);
            segments.add(name.as_str(), |p| Layer {
                to_k: Linear::new(&p.pp(&name).pp("to_k_ip"), context_dim, channels, false),
                to_v: Linear::new(&p.pp(&name).pp("to_v_ip"), context_dim, channels, false),
            })
        };
        let layers = config.layers.iter().enumerate().map(layer).collect();
        Ok(Self { projection, layers, order: unet.image_prompt_order(), segments, config })
    }

    /// The configuration.
    pub fn config(&self) -> &ImagePromptConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The tokens of an image, `(b, n, context_dim)`.
    ///
    /// # Errors
    /// [`Error::Nn`] for inputs of other shapes, and where weights are missing.
    pub fn tokens<T: TensorLike>(&self, input: &PromptInput<T>) -> Result<T> {
        let PromptInput { features, identity, shortcut } = input;
        Ok(self.projection.forward(features.as_ref(), identity.as_ref(), *shortcut)?)
    }

    /// The keys and values of `tokens` `(b, n, context_dim)` for each cross-attention layer, in the order in which they run.
    /// `weights` are the layers' factors in the same order, by which the values are multiplied; a layer of factor 0 has none.
    ///
    /// # Errors
    /// [`Error::ImagePrompt`] for another number of factors, and errors of the layers.
    pub fn keys_values<T: TensorLike>(&self, tokens: &T, weights: &[f32]) -> Result<Vec<Option<KeysValues<T>>>> {
        if weights.len() != self.layers.len() {
            let (found, expected) = (weights.len(), self.layers.len());
            return Err(Error::ImagePrompt(format!("has {expected} layers, but {found} factors are given")));
        }
        let mut all = vec![None; self.layers.len()];
        for (layer, &place) in self.layers.iter().zip(&self.order) {
            let weight = weights[place];
            if weight == 0.0 {
                continue;
            }
            all[place] = Some(T::run(layer, |layer| {
                let values = layer.to_v.forward(tokens)?;
                let values = if weight == 1.0 { values } else { values.affine(f64::from(weight), 0.0)? };
                Ok(KeysValues { keys: layer.to_k.forward(tokens)?, values })
            })?);
        }
        Ok(all)
    }
}
