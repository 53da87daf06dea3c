//! The configuration of a control network in a file without one: from the shapes of its tensors, and what shapes do not show
//! from the U-Net with which it runs.

use kiln_nn::limits::{MAX_LAYERS, MAX_LEVELS};

use super::config::ControlConfig;
use super::union::UnionConfig;
use crate::config::{AddedEmbedding, BlockConfig, SIZE_TIME_IDS, TransformerConfig, UnetConfig};
use crate::error::{Error, Result};

/// Channels of an attention head in every model since Stable Diffusion 2, and the heads of Stable Diffusion 1.
const HEAD_DIM: usize = 64;
const SD1_HEADS: usize = 8;
/// Layers of a transformer that are looked for.
const MAX_DEPTH: usize = 64;

impl ControlConfig {
    /// Derives the configuration from `shape`, which gives a tensor's shape by its name in diffusers. Numbers of heads,
    /// groups of normalizations and the form of the timestep's embedding are `base`'s, the U-Net's.
    ///
    /// # Errors
    /// [`Error::Config`] if tensors are missing that every control network has, or have shapes of none.
    pub fn from_shapes(shape: &dyn Fn(&str) -> Option<Vec<usize>>, base: &UnetConfig) -> Result<Self> {
        let missing = |name: &str| Error::Config {
            key: "tensors",
            found: format!("without `{name}`"),
            expected: "those of a ControlNet".into(),
        };
        let dim = |name: &str, axis: usize| shape(name).and_then(|shape| shape.get(axis).copied());
        let need = |name: &str, axis: usize| dim(name, axis).ok_or_else(|| missing(name));
        let depth = |block: &str| {
            let has = |i: &usize| shape(&format!("{block}.transformer_blocks.{i}.attn2.to_k.weight")).is_some();
            (0..MAX_DEPTH).take_while(has).count()
        };
        let context = |block: &str| dim(&format!("{block}.transformer_blocks.0.attn2.to_k.weight"), 1);
        let linear = |block: &str| shape(&format!("{block}.proj_in.weight")).map(|shape| shape.len() == 2);

        let mut use_linear_projection = base.use_linear_projection;
        let mut transformer = |channels: usize, blocks: Vec<String>| {
            let layers: Vec<usize> = blocks.iter().map(|block| depth(block)).collect();
            let first = blocks.iter().find(|block| depth(block) > 0)?;
            use_linear_projection = linear(first).unwrap_or(use_linear_projection);
            Some(TransformerConfig {
                num_heads: heads(base, channels, use_linear_projection),
                context_dim: context(first)?,
                layers,
            })
        };
        let mut down = Vec::new();
        for i in 0..MAX_LEVELS {
            let resnet = |j: usize| format!("down_blocks.{i}.resnets.{j}.conv1.weight");
            let Some(channels) = dim(&resnet(0), 0) else { break };
            let layers = (0..MAX_LAYERS).take_while(|&j| shape(&resnet(j)).is_some()).count();
            let blocks = (0..layers).map(|j| format!("down_blocks.{i}.attentions.{j}")).collect();
            down.push(BlockConfig { channels, layers, transformer: transformer(channels, blocks) });
        }
        if down.is_empty() {
            return Err(missing("down_blocks.0.resnets.0.conv1.weight"));
        }
        let channels = need("mid_block.resnets.0.conv1.weight", 0)?;
        let mid = BlockConfig {
            channels,
            layers: 1,
            transformer: transformer(channels, vec!["mid_block.attentions.0".to_string()]),
        };
        let added_embedding = dim("add_embedding.linear_1.weight", 1).map(|input_dim| AddedEmbedding {
            time_embed_dim: base.added_embedding.map_or(256, |added| added.time_embed_dim),
            input_dim,
            time_ids: base.added_embedding.map_or(SIZE_TIME_IDS, |added| added.time_ids),
        });
        let network = UnetConfig {
            in_channels: need("conv_in.weight", 1)?,
            out_channels: base.out_channels,
            conv_in_kernel: need("conv_in.weight", 2)?,
            use_linear_projection,
            added_embedding,
            time_cond_proj_dim: None,
            down,
            mid: Some(mid),
            up: Vec::new(),
            ..base.clone()
        };
        network.validate()?;
        let hint = "controlnet_cond_embedding";
        let mut hint_widths = vec![need(&format!("{hint}.conv_in.weight"), 0)?];
        let wider = |i: usize| dim(&format!("{hint}.blocks.{}.weight", 2 * i + 1), 0);
        hint_widths.extend((0..MAX_LEVELS).map_while(wider));
        let hint_channels = need(&format!("{hint}.conv_in.weight"), 1)?;
        let union = UnionConfig::from_shapes(shape);
        let config = Self { network, hint_channels, hint_widths, bgr: false, global_pool: false, union };
        config.check()?;
        Ok(config)
    }
}

/// The attention heads of blocks with so many channels: those of the U-Net's blocks with as many.
fn heads(base: &UnetConfig, channels: usize, linear: bool) -> usize {
    let blocks = base.down.iter().chain(&base.mid).chain(&base.up);
    let same = blocks.filter(|block| block.channels == channels).find_map(|block| block.transformer.as_ref());
    match same {
        Some(transformer) => transformer.num_heads,
        None if linear => (channels / HEAD_DIM).max(1),
        None => SD1_HEADS,
    }
}
