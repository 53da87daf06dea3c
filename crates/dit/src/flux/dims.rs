//! The sizes that the networks of this module have in common, and the keys of their configurations.

use std::ops::RangeInclusive;

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_TRANSFORMER_LAYERS};
use serde::Deserialize;

use super::attention::Heads;
use crate::error::{Error, Result};

/// Pixels of the latents along each side of a token.
pub(crate) const PATCH: usize = 2;
/// Values of each channel of the latents in a token.
pub(crate) const SQUARE: usize = PATCH * PATCH;
/// The base of the rotary embeddings' frequencies.
pub(crate) const THETA: f64 = 10_000.0;
/// Added to the variances and mean squares of all normalizations.
pub(crate) const EPS: f64 = 1e-6;
/// The width of the feed-forward layers, relative to the channels.
pub(crate) const EXPANSION: usize = 4;

/// The sizes of a transformer over image and text tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FluxDims {
    /// Channels of an image token at the input: four values for each latent channel, then those of the extra channels (FLUX.1 Fill,
    /// Canny and Depth).
    pub in_channels: usize,
    /// Channels of an image token at the output: four values for each latent channel.
    pub out_channels: usize,
    /// Channels of a text token.
    pub context_dim: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// The channels of a head that turn with each axis of a token's position: index of the image, row, column.
    pub axes: [usize; 3],
    /// Double blocks, which have weights of their own for text and image.
    pub layers: usize,
    /// Single blocks, which have one set of weights for both.
    pub single_layers: usize,
}

impl FluxDims {
    /// Channels of the tokens inside.
    pub fn channels(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The heads of all attentions.
    pub(crate) fn heads(&self) -> Heads {
        Heads { num_heads: self.num_heads, head_dim: self.head_dim, bias: true, eps: EPS }
    }

    /// Channels of the latents.
    pub fn latent_channels(&self) -> usize {
        self.out_channels / SQUARE
    }

    /// Channels besides the latents ([`kiln_network::slots::EXTRA_CHANNELS`]): 16 for FLUX.1 Canny and Depth, 80 for Fill.
    pub fn extra_channels(&self) -> usize {
        (self.in_channels - self.out_channels) / SQUARE
    }
}

/// The keys that Kiln reads, with diffusers' defaults. Each network reads some of them.
#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    patch_size: usize,
    in_channels: usize,
    out_channels: Option<usize>,
    num_layers: usize,
    num_single_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    joint_attention_dim: usize,
    axes_dims_rope: Vec<usize>,
    pub(super) pooled_projection_dim: usize,
    pub(super) guidance_embeds: bool,
    pub(super) approximator_num_channels: usize,
    pub(super) approximator_hidden_dim: usize,
    pub(super) approximator_layers: usize,
    pub(super) num_mode: Option<usize>,
    pub(super) conditioning_embedding_channels: Option<usize>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            patch_size: 1,
            in_channels: 64,
            out_channels: None,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            axes_dims_rope: vec![16, 56, 56],
            pooled_projection_dim: 768,
            guidance_embeds: false,
            approximator_num_channels: 64,
            approximator_hidden_dim: 5120,
            approximator_layers: 5,
            num_mode: None,
            conditioning_embedding_channels: None,
        }
    }
}

/// The name of a network in messages, and its checks.
#[derive(Clone, Copy)]
pub(crate) struct Checks(pub(crate) &'static str);

impl Checks {
    /// The keys of `text`.
    pub(super) fn parse(self, text: &str) -> Result<RawConfig> {
        serde_json::from_str(text).map_err(|error| Error::Json { network: self.0, error })
    }

    /// An error for an impossible value.
    pub(crate) fn refuse<T>(self, key: &'static str, found: impl ToString, expected: impl Into<String>) -> Result<T> {
        Err(Error::Config { network: self.0, key, found: found.to_string(), expected: expected.into() })
    }

    /// An error for a value outside of `range`.
    pub(crate) fn range(self, key: &'static str, value: usize, range: RangeInclusive<usize>) -> Result<()> {
        if range.contains(&value) { Ok(()) } else { self.refuse(key, value, limits::expected(&range)) }
    }

    /// The sizes, checked.
    pub(super) fn dims(self, raw: &RawConfig) -> Result<FluxDims> {
        // Latents are packed before the network.
        self.range("patch_size", raw.patch_size, 1..=1)?;
        let out_channels = raw.out_channels.unwrap_or(raw.in_channels);
        for (key, value) in [("in_channels", raw.in_channels), ("out_channels", out_channels)] {
            self.range(key, value, SQUARE..=MAX_CHANNELS)?;
            if !value.is_multiple_of(SQUARE) {
                return self.refuse(key, value, format!("a multiple of {SQUARE}"));
            }
        }
        if out_channels > raw.in_channels {
            return self.refuse("out_channels", out_channels, format!("at most `in_channels`, {}", raw.in_channels));
        }
        self.range("joint_attention_dim", raw.joint_attention_dim, 1..=MAX_CHANNELS)?;
        self.range("num_layers", raw.num_layers, 0..=MAX_TRANSFORMER_LAYERS)?;
        self.range("num_single_layers", raw.num_single_layers, 0..=MAX_TRANSFORMER_LAYERS)?;
        if raw.num_layers + raw.num_single_layers == 0 {
            return self.refuse("num_layers", 0, "at least one block");
        }
        let (heads, head_dim) = (raw.num_attention_heads, raw.attention_head_dim);
        let axes = self.heads([heads, head_dim], &raw.axes_dims_rope)?;
        Ok(FluxDims {
            in_channels: raw.in_channels,
            out_channels,
            context_dim: raw.joint_attention_dim,
            num_heads: heads,
            head_dim,
            axes,
            layers: raw.num_layers,
            single_layers: raw.num_single_layers,
        })
    }

    /// The channels that turn with each axis, for `num_heads` heads of `head_dim` channels, checked.
    pub(crate) fn heads(self, [num_heads, head_dim]: [usize; 2], axes: &[usize]) -> Result<[usize; 3]> {
        self.range("attention_head_dim", head_dim, 2..=MAX_CHANNELS)?;
        self.range("num_attention_heads", num_heads, 1..=MAX_CHANNELS / head_dim)?;
        let Ok(axes) = <[usize; 3]>::try_from(axes) else {
            return self.refuse("axes_dims_rope", format!("a list of {}", axes.len()), "a list of 3");
        };
        let sum = axes.iter().fold(0usize, |sum, &axis| sum.saturating_add(axis));
        if sum != head_dim || axes.iter().any(|axis| *axis == 0 || axis % 2 != 0) {
            let expected = format!("even numbers with the sum {head_dim}, the channels of a head");
            return self.refuse("axes_dims_rope", format!("{axes:?}"), expected);
        }
        Ok(axes)
    }
}
