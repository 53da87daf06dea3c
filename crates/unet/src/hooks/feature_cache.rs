//! DeepCache (Ma et al., arXiv 2312.00858): the deep part of the network runs in some evaluations only; its output is stored and
//! stands for it in the others.
//!
//! As in the package DeepCache with the skip mode `uniform`, the stored feature is the input of one layer of the way up, before
//! its skip connection is joined. A call that uses it runs the way down up to that skip connection, then the way up from that
//! layer on.

use candle_core::Tensor;
use kiln_nn::{Result, TensorLike};

use super::SkipHook;
use crate::config::{BlockConfig, UnetConfig};

/// A feature that is stored in one call and used in others.
#[derive(Debug, Clone)]
pub struct FeatureCache<T = Tensor> {
    /// The number of the skip connection at the shortcut: 0 is that of the first convolution, which leaves out the most.
    pub branch: usize,
    /// Whether this call takes the shortcut with the feature, or runs the whole network and stores it.
    pub is_shortcut: bool,
    /// The feature, `(b, h, w, c)` of [`UnetConfig::cached_feature`] in the network's type. A call that runs the whole network
    /// overwrites it.
    pub feature: T,
}

/// A layer of the way up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UpLayer {
    pub(crate) block: usize,
    pub(crate) layer: usize,
}

impl UpLayer {
    /// The first one.
    pub(crate) const FIRST: Self = Self { block: 0, layer: 0 };
}

/// Stores the input of a layer of the way up.
pub(crate) struct StoreFeature<'a, T> {
    pub(crate) at: UpLayer,
    pub(crate) feature: &'a T,
}

impl<T: TensorLike> SkipHook<T> for StoreFeature<'_, T> {
    fn join(&self, block: usize, layer: usize, x: T, skip: T) -> Result<(T, T)> {
        if self.at == (UpLayer { block, layer }) {
            self.feature.slice_set(&x.contiguous()?, 0, 0)?;
        }
        Ok((x, skip))
    }
}

impl UnetConfig {
    /// The layer of the way up that takes the skip connection of this number.
    pub(crate) fn up_layer(&self, branch: usize) -> Option<UpLayer> {
        // The way up takes the last one first.
        let mut left = self.skips().len().checked_sub(branch + 1)?;
        for (block, config) in self.up.iter().enumerate() {
            if left < config.layers {
                return Some(UpLayer { block, layer: left });
            }
            left -= config.layers;
        }
        None
    }

    /// The shape of the middle block's map `(b, h, w, c)` for latents `(b, c, height, width)`.
    pub fn mid_map(&self, b: usize, size: (usize, usize)) -> [usize; 4] {
        // That of the last skip connection.
        let last = self.skips().len().saturating_sub(1);
        self.cached_feature(last, b, size).unwrap_or([b, size.0, size.1, self.model_channels()])
    }

    /// The shape of the feature at the shortcut of skip connection `branch`, `(b, h, w, c)` for latents `(b, c, height, width)`;
    /// `None` where the network has no such skip connection.
    pub fn cached_feature(&self, branch: usize, b: usize, (height, width): (usize, usize)) -> Option<[usize; 4]> {
        let UpLayer { block, layer } = self.up_layer(branch)?;
        let channels = |config: Option<&BlockConfig>| config.map(|config| config.channels);
        let c = match (block, layer) {
            (0, 0) => channels(self.down.last())?,
            (block, 0) => channels(self.up.get(block - 1))?,
            (block, _) => channels(self.up.get(block))?,
        };
        // Skip connections before this one that are a downsampling's.
        let mut steps = branch;
        let mut halvings = 0;
        for config in &self.down {
            match steps.checked_sub(config.layers + 1) {
                Some(rest) => (steps, halvings) = (rest, halvings + 1),
                None => break,
            }
        }
        let half = |n: usize| if self.downsample_padding > 0 { n.div_ceil(2) } else { n / 2 };
        let size = |n: usize| (0..halvings).fold(n, |n, _| half(n));
        Some([b, size(height), size(width), c])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortcut_is_at_the_layer_of_its_skip_connection() {
        let config = UnetConfig::from_json(
            r#"{"block_out_channels": [32, 64], "layers_per_block": 2, "cross_attention_dim": 48, "attention_head_dim": 4,
                "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
                "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}"#,
        )
        .unwrap();
        // Skip connections: the first convolution, two layers, a downsampling, two layers.
        let found: Vec<_> = (0..7).map(|branch| config.cached_feature(branch, 2, (9, 8))).collect();
        let [large, small] = [|c| Some([2, 9, 8, c]), |c| Some([2, 5, 4, c])];
        // The first layer of an up block takes what the block before it gave.
        assert_eq!(found, [large(32), large(32), large(64), small(64), small(64), small(64), None]);
        assert_eq!(config.up_layer(0), Some(UpLayer { block: 1, layer: 2 }));
        assert_eq!(config.up_layer(5), Some(UpLayer::FIRST));
    }
}
