//! The shapes of networks from their configurations, which determine names in a single file.

use kiln_unet::{BlockConfig, UnetConfig};
use kiln_weights::ldm::{UnetLevel, UnetShape};

/// The shape of the U-Net that `config` describes.
pub(crate) fn unet_shape(config: &UnetConfig) -> UnetShape {
    let level = |block: &BlockConfig| UnetLevel {
        channels: block.channels,
        depths: match &block.transformer {
            Some(transformer) => transformer.layers.clone(),
            None => vec![0; block.layers],
        },
    };
    UnetShape {
        in_channels: config.in_channels,
        out_channels: config.out_channels,
        down: config.down.iter().map(level).collect(),
        middle: config.mid.as_ref().map(|block| level(block).depths.first().copied().unwrap_or(0)),
        up: config.up.iter().map(level).collect(),
        context_dim: config.context_dim().unwrap_or(0),
        linear_projection: config.use_linear_projection,
        added_dim: config.added_embedding.map(|added| added.input_dim),
        guidance_dim: config.time_cond_proj_dim,
    }
}
