//! The cross-attention layers of a U-Net.

use crate::config::{BlockConfig, UnetConfig};
use crate::hooks::{BlockId, LayerId};

/// A cross-attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossLayer {
    /// Where it is.
    pub id: LayerId,
    /// Its channels.
    pub channels: usize,
    /// How often the latents are halved, in both directions, before they come to it.
    pub level: usize,
}

impl UnetConfig {
    /// All cross-attention layers, in the order in which they run, which is that of their places.
    pub fn cross_layers(&self) -> Vec<CrossLayer> {
        let last = self.down.len().saturating_sub(1);
        let down = self.down.iter().enumerate().map(|(i, block)| (BlockId::Down(i), block, i));
        let mid = self.mid.iter().map(|block| (BlockId::Mid, block, last));
        let up = self.up.iter().enumerate().map(|(i, block)| (BlockId::Up(i), block, last.saturating_sub(i)));
        down.chain(mid).chain(up).flat_map(|(id, block, level)| of_block(id, block, level)).collect()
    }

    /// The numbers of the cross-attention layers in the order of IP-Adapters' files: those of the way down, of the way up,
    /// then of the middle (`attn_processors` of diffusers' `UNet2DConditionModel`).
    pub fn image_prompt_order(&self) -> Vec<usize> {
        let layers = self.cross_layers();
        let part = |is_part: fn(BlockId) -> bool| {
            let of = move |(i, layer): (usize, &CrossLayer)| is_part(layer.id.block).then_some(i);
            layers.iter().enumerate().filter_map(of).collect::<Vec<_>>()
        };
        let down = part(|block| matches!(block, BlockId::Down(_)));
        let up = part(|block| matches!(block, BlockId::Up(_)));
        [down, up, part(|block| block == BlockId::Mid)].concat()
    }
}

fn of_block(block: BlockId, config: &BlockConfig, level: usize) -> Vec<CrossLayer> {
    let Some(transformer) = &config.transformer else { return Vec::new() };
    let depths = transformer.layers.iter().enumerate();
    let of = |(transformer, &depth): (usize, &usize)| {
        (0..depth).map(move |layer| CrossLayer {
            id: LayerId { block, transformer, layer },
            channels: config.channels,
            level,
        })
    };
    depths.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_middle_last() {
        let config = UnetConfig::from_json(
            r#"{"block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": 48, "attention_head_dim": 4,
                "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
                "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "norm_num_groups": 8}"#,
        )
        .unwrap();
        let layers = config.cross_layers();
        let found: Vec<_> = layers.iter().map(|layer| (layer.id.block, layer.channels, layer.level)).collect();
        let up = (BlockId::Up(1), 32, 0);
        assert_eq!(found, [(BlockId::Down(0), 32, 0), (BlockId::Mid, 64, 1), up, up]);
        assert!(layers.is_sorted_by_key(|layer| layer.id));
        assert_eq!(config.image_prompt_order(), [0, 2, 3, 1]);
    }
}
