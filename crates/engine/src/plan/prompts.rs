//! Image prompts in a plan: the image encoders and the IP-Adapters, and what they leave for the steps.

use kiln_clip::{ImageFeatures, VisionEncoder};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{ImagePrompt, ImagePromptNet, KeysValues, PromptFeatures, PromptInput, UnetConfig};
use kiln_weights::Segments;

use super::Workload;
use super::dry_run::Networks;
use crate::error::Result;
use crate::loaded_prompts::PromptPlan;

/// Tokens that an image encoder has where a plan knows none: those of ViT-H/14.
const USUAL_TOKENS: usize = 257;

/// The networks of an IP-Adapter.
pub(super) struct PromptNetworks {
    net: ImagePromptNet,
    encoder: Option<(VisionEncoder, ImageFeatures)>,
    /// Cross-attention layers of the U-Net.
    layers: usize,
}

/// The keys and values of a prompt for the images of a batch: those of the unconditional rows, and of the conditional ones.
pub(super) struct GroupPrompt {
    halves: Vec<Vec<Option<KeysValues<MetaTensor>>>>,
}

impl PromptNetworks {
    /// The networks of `plan` for a U-Net; `None` where they do not go together.
    pub(super) fn new(plan: PromptPlan, unet: &UnetConfig) -> Option<Self> {
        let net = ImagePromptNet::new(plan.config, unet).ok()?;
        let encoder = match plan.encoder {
            Some((config, features)) => Some((VisionEncoder::new(config).ok()?, features)),
            None => None,
        };
        Some(Self { net, encoder, layers: unet.cross_layers().len() })
    }

    /// The segments of its networks, which run one after the other.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segments> {
        self.encoder.iter().map(|(encoder, _)| encoder.segments()).chain([self.net.segments()])
    }

    /// Encodes an image before the steps.
    pub(super) fn encode(&self, device: &MetaDevice, work: &Workload, networks: &Networks<'_>) -> Result<GroupPrompt> {
        let (dtype, projection) = (networks.dtype, self.net.config().projection);
        let rows = if work.text.guided { 2 } else { 1 };
        let dim = projection.encoder_dim().unwrap_or(0);
        let one = || -> Result<MetaTensor> {
            let Some((encoder, features)) = &self.encoder else {
                let is_embedding = projection.features() == PromptFeatures::Embedding;
                let shape = if is_embedding { vec![1, dim] } else { vec![1, USUAL_TOKENS, dim] };
                return Ok(device.tensor(&shape, dtype));
            };
            let size = encoder.config().image_size;
            Ok(encoder.forward(&device.tensor(&[1, 3, size, size], dtype), *features)?)
        };
        let tokens = || -> Result<MetaTensor> {
            let features = if dim > 0 { Some(one()?) } else { None };
            let identity = projection.identity_dim().map(|dim| device.tensor(&[1, dim], dtype));
            Ok(self.net.tokens(&PromptInput { features, identity, shortcut: false })?)
        };
        let tokens = (0..rows).map(|_| tokens()).collect::<Result<Vec<_>>>()?;
        let tokens = MetaTensor::cat(&tokens.iter().collect::<Vec<_>>(), 0)?;
        let made = self.net.keys_values(&tokens, &vec![1.0; self.layers])?;
        let half = |tensor: &MetaTensor| -> Result<MetaTensor> {
            let one = tensor.narrow(0, 0, 1)?;
            Ok(MetaTensor::cat(&vec![&one; work.batch_size], 0)?)
        };
        let of = |layer: &Option<KeysValues<MetaTensor>>| -> Result<Option<KeysValues<MetaTensor>>> {
            let Some(layer) = layer else { return Ok(None) };
            Ok(Some(KeysValues { keys: half(&layer.keys)?, values: half(&layer.values)? }))
        };
        let halves = (0..rows).map(|_| made.iter().map(of).collect::<Result<_>>());
        Ok(GroupPrompt { halves: halves.collect::<Result<_>>()? })
    }
}

impl GroupPrompt {
    /// The prompt of `rows` rows for each image.
    pub(super) fn rows(&self, rows: usize) -> Result<ImagePrompt<MetaTensor>> {
        let (Some(negative), Some(positive)) = (self.halves.first(), self.halves.last()) else {
            return Ok(ImagePrompt { layers: Vec::new(), masks: Vec::new() });
        };
        let join = |negative: &MetaTensor, positive: &MetaTensor| -> Result<MetaTensor> {
            let all: Vec<_> = (0..rows).map(|row| if row == 0 { negative } else { positive }).collect();
            Ok(if rows == 1 { positive.clone() } else { MetaTensor::cat(&all, 0)? })
        };
        let of = |(negative, positive): (&Option<KeysValues<_>>, &Option<KeysValues<_>>)| -> Result<Option<_>> {
            let (Some(negative), Some(positive)) = (negative, positive) else { return Ok(None) };
            let keys = join(&negative.keys, &positive.keys)?;
            Ok(Some(KeysValues { keys, values: join(&negative.values, &positive.values)? }))
        };
        let layers = negative.iter().zip(positive).map(of).collect::<Result<_>>()?;
        Ok(ImagePrompt { layers, masks: Vec::new() })
    }
}
