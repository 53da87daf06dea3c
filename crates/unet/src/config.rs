//! The configuration of a U-Net.

use std::ops::RangeInclusive;

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_KERNEL, MAX_TRANSFORMER_LAYERS};

use crate::error::{Error, Result};
use crate::hooks::{BlockId, LayerId};

/// A U-Net's configuration, with every block listed.
#[derive(Debug, Clone, PartialEq)]
pub struct UnetConfig {
    /// Channels of the input: 4, or 9 with an inpainting model's mask and masked image.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Kernel size of the first convolution.
    pub conv_in_kernel: usize,
    /// Kernel size of the last convolution.
    pub conv_out_kernel: usize,
    /// Whether cosines come first in the timestep embedding.
    pub flip_sin_to_cos: bool,
    /// The shift of the frequencies in the timestep embedding.
    pub freq_shift: f64,
    /// Groups of all group normalizations.
    pub norm_num_groups: usize,
    /// The epsilon of the residual blocks' normalizations.
    pub norm_eps: f64,
    /// Padding of the downsampling convolutions.
    pub downsample_padding: usize,
    /// Whether the transformers' outer projections are stored as linear layers rather than 1x1 convolutions.
    pub use_linear_projection: bool,
    /// SDXL's second conditioning.
    pub added_embedding: Option<AddedEmbedding>,
    /// Width of the embedding of the guidance scale, in networks that were distilled together with guidance (LCM). They
    /// run once a step, without an unconditional half.
    pub time_cond_proj_dim: Option<usize>,
    /// The blocks of the down path, with the largest feature map first.
    pub down: Vec<BlockConfig>,
    /// The middle block.
    pub mid: Option<BlockConfig>,
    /// The blocks of the up path, with the smallest feature map first.
    pub up: Vec<BlockConfig>,
}

/// One block: residual blocks, each followed by a transformer if the block has cross attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockConfig {
    /// Channels of the block's output.
    pub channels: usize,
    /// The number of residual blocks.
    pub layers: usize,
    /// The transformers, if there are any.
    pub transformer: Option<TransformerConfig>,
}

/// The transformers of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransformerConfig {
    /// Attention heads.
    pub num_heads: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
    /// The number of layers of the transformer after each residual block.
    pub layers: Vec<usize>,
}

/// The `text_time` embedding of SDXL: pooled text and some numbers, added to the timestep embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddedEmbedding {
    /// Width of each number's embedding.
    pub time_embed_dim: usize,
    /// Width of pooled text and all numbers together.
    pub input_dim: usize,
    /// How many numbers: [`SIZE_TIME_IDS`], or a refiner's [`SCORE_TIME_IDS`]. A configuration does not say which;
    /// [`UnetConfig::for_pooled`] finds out.
    pub time_ids: usize,
}

/// The numbers that SDXL's base takes: original height and width, crop top and left, target height and width.
pub const SIZE_TIME_IDS: usize = 6;
/// The numbers that SDXL's refiner takes: original height and width, crop top and left, aesthetic score.
pub const SCORE_TIME_IDS: usize = 5;

/// The minimum width of an embedding of a number: it needs two frequencies.
const MIN_EMBEDDING: usize = 4;
/// Widths of embeddings of numbers.
const EMBEDDING: RangeInclusive<usize> = MIN_EMBEDDING..=MAX_CHANNELS;

impl UnetConfig {
    /// Channels of the text's tokens.
    pub fn context_dim(&self) -> Option<usize> {
        let blocks = self.down.iter().chain(&self.mid).chain(&self.up);
        blocks.filter_map(|block| block.transformer.as_ref()).map(|transformer| transformer.context_dim).next()
    }

    /// All layers of all transformers.
    pub fn transformer_layers(&self) -> Vec<LayerId> {
        let down = self.down.iter().enumerate().map(|(i, block)| (BlockId::Down(i), block));
        let up = self.up.iter().enumerate().map(|(i, block)| (BlockId::Up(i), block));
        let blocks = down.chain(self.mid.iter().map(|block| (BlockId::Mid, block))).chain(up);
        let of = |(id, block): (BlockId, &BlockConfig)| {
            let depths = block.transformer.iter().flat_map(|transformer| &transformer.layers).copied();
            let layers = |(transformer, depth)| (0..depth).map(move |layer| LayerId { block: id, transformer, layer });
            depths.enumerate().flat_map(layers).collect::<Vec<_>>()
        };
        blocks.flat_map(of).collect()
    }

    /// Width of the pooled text in the added embedding.
    pub fn pooled_dim(&self) -> Option<usize> {
        self.added_embedding.map(|added| added.input_dim.saturating_sub(added.time_ids * added.time_embed_dim))
    }

    /// Fits the network to a text encoder whose pooled text has `pooled` channels: a refiner's width leaves room for one
    /// number less (diffusers' `_get_add_time_ids`).
    #[must_use]
    pub fn for_pooled(self, pooled: usize) -> Self {
        let with_score =
            |added: AddedEmbedding| added.input_dim == pooled.saturating_add(SCORE_TIME_IDS * added.time_embed_dim);
        let added_embedding = self.added_embedding.map(|added| match with_score(added) {
            true => AddedEmbedding { time_ids: SCORE_TIME_IDS, ..added },
            false => added,
        });
        Self { added_embedding, ..self }
    }

    /// How many numbers the added embedding takes besides the pooled text; 0 without one.
    pub fn time_ids(&self) -> usize {
        self.added_embedding.map_or(0, |added| added.time_ids)
    }

    /// Whether an aesthetic score is among these numbers, as for SDXL's refiner.
    pub fn takes_score(&self) -> bool {
        self.time_ids() == SCORE_TIME_IDS
    }

    /// Channels of the input that are no latents: an inpainting network's mask and masked image.
    pub fn extra_channels(&self) -> usize {
        self.in_channels.saturating_sub(self.out_channels)
    }

    /// Channels of the input that are latents.
    pub fn latent_channels(&self) -> usize {
        self.in_channels - self.extra_channels()
    }

    /// The channels of the skip connections, in the order in which the way down makes them.
    pub fn skips(&self) -> Vec<usize> {
        let mut skips = vec![self.model_channels()];
        for (i, block) in self.down.iter().enumerate() {
            let downsamples = usize::from(i + 1 < self.down.len());
            skips.extend(std::iter::repeat_n(block.channels, block.layers + downsamples));
        }
        skips
    }

    /// Channels of the first feature map.
    pub(crate) fn model_channels(&self) -> usize {
        self.down[0].channels
    }

    /// Channels of the time embedding.
    pub(crate) fn temb_channels(&self) -> usize {
        4 * self.model_channels()
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let error = |key, found: String, expected: &str| Err(Error::Config { key, found, expected: expected.into() });
        let added = self.added_embedding;
        for (key, value, range) in [
            ("in_channels", self.in_channels, 1..=MAX_CHANNELS),
            ("out_channels", self.out_channels, 1..=MAX_CHANNELS),
            ("norm_num_groups", self.norm_num_groups, 1..=MAX_CHANNELS),
            ("downsample_padding", self.downsample_padding, 0..=MAX_KERNEL),
            ("addition_time_embed_dim", added.map_or(MIN_EMBEDDING, |added| added.time_embed_dim), EMBEDDING),
            ("projection_class_embeddings_input_dim", added.map_or(1, |added| added.input_dim), 1..=MAX_CHANNELS),
            ("time_cond_proj_dim", self.time_cond_proj_dim.unwrap_or(MIN_EMBEDDING), EMBEDDING),
        ] {
            if !range.contains(&value) {
                return error(key, value.to_string(), &limits::expected(&range));
            }
        }
        for (key, kernel) in [("conv_in_kernel", self.conv_in_kernel), ("conv_out_kernel", self.conv_out_kernel)] {
            if kernel % 2 == 0 || kernel > MAX_KERNEL {
                return error(key, kernel.to_string(), &format!("an odd number up to {MAX_KERNEL}"));
            }
        }
        if !limits::is_epsilon(self.norm_eps) {
            return error("norm_eps", format!("{:?}", self.norm_eps), "more than 0 and at most 1");
        }
        let narrowest = added.map_or(usize::MAX, |added| added.time_embed_dim).min(self.model_channels());
        if !(self.freq_shift.abs() <= 1.0 && self.freq_shift < (narrowest / 2) as f64) {
            return error(
                "freq_shift",
                format!("{:?}", self.freq_shift),
                "a number from -1 to 1, less than half a width",
            );
        }
        let blocks = || self.down.iter().chain(&self.mid).chain(&self.up);
        let depths =
            blocks().filter_map(|block| block.transformer.as_ref()).flat_map(|transformer| &transformer.layers);
        let depth = depths.fold(0usize, |sum, &layers| sum.saturating_add(layers));
        if depth > MAX_TRANSFORMER_LAYERS {
            let expected = format!("at most {MAX_TRANSFORMER_LAYERS}");
            return error("transformer_layers_per_block", format!("{depth} layers in all blocks together"), &expected);
        }
        for block in blocks() {
            if block.channels > MAX_CHANNELS {
                return error("block_out_channels", block.channels.to_string(), &format!("at most {MAX_CHANNELS}"));
            }
            if block.channels % self.norm_num_groups != 0 {
                let groups = self.norm_num_groups;
                return error(
                    "block_out_channels",
                    block.channels.to_string(),
                    &format!("a multiple of {groups} groups"),
                );
            }
            if block.layers == 0 {
                return error("layers_per_block", "0".into(), "at least 1");
            }
            if let Some(transformer) = &block.transformer {
                let heads = transformer.num_heads;
                if heads == 0 || block.channels % heads != 0 {
                    let expected = format!("a divisor of {} channels", block.channels);
                    return error("attention_head_dim", heads.to_string(), &expected);
                }
                let (dim, range) = (transformer.context_dim, 1..=MAX_CHANNELS);
                if !range.contains(&dim) {
                    return error("cross_attention_dim", dim.to_string(), &limits::expected(&range));
                }
            }
        }
        if let Some(added) = self.added_embedding
            && added.input_dim <= SCORE_TIME_IDS * added.time_embed_dim
        {
            let expected = format!("more than {SCORE_TIME_IDS} times addition_time_embed_dim");
            return error("projection_class_embeddings_input_dim", added.input_dim.to_string(), &expected);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        UnetConfig::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_configuration_is_stable_diffusion_1() {
        let config = UnetConfig::from_json("{}").unwrap();
        assert_eq!(config.down.iter().map(|block| block.channels).collect::<Vec<_>>(), [320, 640, 1280, 1280]);
        assert_eq!(config.up.iter().map(|block| block.layers).collect::<Vec<_>>(), [3, 3, 3, 3]);
        assert!(config.down[3].transformer.is_none() && config.up[0].transformer.is_none());
    }

    #[test]
    fn transformer_layers_may_differ_by_layer() {
        // As in SSD-1B: lists of lists, and separate lists for the up path.
        let config = UnetConfig::from_json(
            r#"{"block_out_channels": [320, 640], "cross_attention_dim": 2048, "attention_head_dim": [5, 10],
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
                "transformer_layers_per_block": [1, [2, 4]],
                "reverse_transformer_layers_per_block": [[4, 4, 10], 1], "mid_block_type": null}"#,
        )
        .unwrap();
        assert_eq!(config.down[1].transformer.as_ref().unwrap().layers, [2, 4]);
        assert_eq!(config.up[0].transformer.as_ref().unwrap().layers, [4, 4, 10]);
        assert!(config.mid.is_none());
    }

    /// Values that previously allocated all memory, ran forever, or panicked.
    #[test]
    fn numbers_that_no_network_has_are_refused() {
        for number in ["10000", "1000000000", "9223372036854775808"] {
            let message = message(&format!(r#"{{"layers_per_block": {number}}}"#));
            assert!(
                message.contains(&format!("`layers_per_block` is {number}, expected a number from 1 to 64")),
                "{message}"
            );
            for key in ["transformer_layers_per_block", "reverse_transformer_layers_per_block"] {
                let message = self::message(&format!(r#"{{"{key}": {number}}}"#));
                assert!(message.contains("`transformer_layers_per_block` is "), "{message}");
                assert!(message.contains("expected at most 1024"), "{message}");
            }
        }
        let levels = |count: usize| {
            let names = |name: &'static str| vec![name; count];
            serde_json::json!({"block_out_channels": vec![64; count], "down_block_types": names("DownBlock2D"),
                "up_block_types": names("UpBlock2D"), "mid_block_type": null})
            .to_string()
        };
        assert!(UnetConfig::from_json(&levels(8)).is_ok());
        assert!(message(&levels(1000)).contains("`block_out_channels` is a list of 1000, expected 1 to 8"));
        assert!(message(r#"{"norm_eps": 1e308}"#).contains("`norm_eps` is 1e308, expected more than 0"));
        assert!(message(r#"{"norm_eps": 0}"#).contains("`norm_eps` is 0.0"));
        assert!(message(r#"{"freq_shift": 1e20}"#).contains("`freq_shift` is 1e20"));
        assert!(message(r#"{"conv_in_kernel": 4294967297}"#).contains("`conv_in_kernel` is 4294967297"));
        assert!(message(r#"{"cross_attention_dim": 4294967296}"#).contains("expected a number from 1 to 65536"));
        assert!(
            message(r#"{"time_cond_proj_dim": 2}"#).contains("`time_cond_proj_dim` is 2, expected a number from 4")
        );
    }

    #[test]
    fn errors_name_the_key() {
        assert!(message(r#"{"layers_per_block": [1, 2]}"#).contains("`layers_per_block` is a list of 2"));
        assert!(message(r#"{"class_embed_type": "timestep"}"#).contains("`class_embed_type` is \"timestep\""));
        assert!(message(r#"{"act_fn": "mish"}"#).contains("(only silu)"));
        assert!(
            message(r#"{"attention_head_dim": 7}"#).contains("`attention_head_dim` is 7, expected a divisor of 320")
        );
        assert!(message(r#"{"down_block_types": ["A", "B", "C", "D"]}"#).contains("`down_block_types` is A"));
        assert!(message(r#"{"addition_embed_type": "text_time"}"#).contains("`addition_time_embed_dim` is missing"));
        assert!(message("[").contains("cannot be read"));
    }
}
