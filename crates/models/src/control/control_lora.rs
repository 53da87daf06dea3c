//! Control LoRAs of Stability AI: ControlNets as low-rank changes of the encoder of the model that they run with.

use std::path::Path;
use std::sync::Arc;

use kiln_unet::{BlockConfig, ControlConfig, ControlModel, ControlModelConfig, UnetConfig};
use kiln_weights::ldm::{UnetLevel, UnetShape};
use kiln_weights::{Checkpoint, LowRank, ParamSource};

use super::Opened;
use super::controlnet::refused_xl;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// Convolutions between the first and the last of a control image's embedding.
const HINT_BLOCKS: usize = 6;

/// A control LoRA over the U-Net of `model`.
pub(super) fn open(path: &Path, checkpoint: Arc<Checkpoint>, model: &ModelFolder) -> Result<Opened> {
    let base = model.unet_for(path, "a control LoRA")?;
    let has = |name: &str| checkpoint.info(name).is_some();
    let is_xl = ["weight", "up", "bias"].iter().any(|part| has(&format!("label_emb.0.0.{part}")));
    if is_xl && base.pooled_dim().is_none() {
        return Err(refused_xl(path, "a control LoRA", (model, base)));
    }
    let dim = |name: &str, axis: usize| {
        let found = checkpoint.info(name).and_then(|info| info.shape.get(axis).copied());
        found.ok_or_else(|| Error::model(path, format!("has no `{name}`, expected the tensors of a control LoRA")))
    };
    let hint_channels = dim("input_hint_block.0.weight", 1)?;
    let mut hint_widths = vec![dim("input_hint_block.0.weight", 0)?];
    // Every second convolution goes to other channels.
    for block in (1..HINT_BLOCKS).step_by(2) {
        hint_widths.push(dim(&format!("input_hint_block.{}.weight", 2 * block + 2), 0)?);
    }
    let network =
        UnetConfig { in_channels: base.latent_channels(), time_cond_proj_dim: None, up: Vec::new(), ..base.clone() };
    let config = ControlConfig { network, hint_channels, hint_widths, bgr: false, global_pool: false, union: None };
    let config = ControlModelConfig::ControlNet(config);
    let source = LowRank::new(checkpoint, encoder_shape(base).control_names(), model.files().denoiser_weights()?);
    let network = ControlModel::new(&config);
    let keys = network.step_segments().iter().flat_map(|segment| segment.params()).map(|param| param.key.as_str());
    if let Some((names, expected, found)) = source.mismatch(keys) {
        let problem = format!(
            "is a control LoRA whose {names} are {found}, but the model {} has {expected}: give a control LoRA for that family",
            model.name()
        );
        return Err(Error::model(path, problem));
    }
    Ok((config, Arc::new(source)))
}

/// The dimensions by which a file names the encoder of `unet`.
fn encoder_shape(unet: &UnetConfig) -> UnetShape {
    let depths = |block: &BlockConfig| match &block.transformer {
        Some(transformer) => transformer.layers.clone(),
        None => vec![0; block.layers],
    };
    let middle = |block: &BlockConfig| depths(block).first().copied().unwrap_or(0);
    UnetShape {
        in_channels: unet.latent_channels(),
        out_channels: unet.out_channels,
        down: unet.down.iter().map(|block| UnetLevel { channels: block.channels, depths: depths(block) }).collect(),
        middle: unet.mid.as_ref().map(middle),
        up: Vec::new(),
        context_dim: unet.context_dim().unwrap_or(0),
        linear_projection: unet.use_linear_projection,
        added_dim: unet.added_embedding.map(|added| added.input_dim),
        guidance_dim: None,
    }
}
