//! The keys of diffusers' `config.json` that transformers and control networks have in common.

use std::ops::RangeInclusive;

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_KERNEL, MAX_TRANSFORMER_LAYERS};
use serde::Deserialize;

use super::config::Sd3Config;
use crate::error::{Error, Result};

/// Rows and columns of the largest table of positions. The largest in use has 384.
const MAX_POSITIONS: usize = 4096;

/// The keys that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    in_channels: usize,
    out_channels: usize,
    patch_size: usize,
    pos_embed_max_size: usize,
    num_layers: usize,
    num_attention_heads: usize,
    attention_head_dim: usize,
    pub(super) joint_attention_dim: Option<usize>,
    caption_projection_dim: usize,
    pooled_projection_dim: usize,
    qk_norm: Option<String>,
    dual_attention_layers: Option<Vec<usize>>,
    // Of control networks.
    pub(super) extra_conditioning_channels: usize,
    pub(super) use_pos_embed: bool,
    pub(super) pos_embed_type: Option<String>,
    pub(super) force_zeros_for_pooled_projection: Option<bool>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            in_channels: 16,
            out_channels: 16,
            patch_size: 2,
            pos_embed_max_size: 96,
            num_layers: 18,
            num_attention_heads: 18,
            attention_head_dim: 64,
            joint_attention_dim: Some(4096),
            caption_projection_dim: 1152,
            pooled_projection_dim: 2048,
            qk_norm: None,
            dual_attention_layers: None,
            extra_conditioning_channels: 0,
            use_pos_embed: true,
            pos_embed_type: Some("sincos".into()),
            force_zeros_for_pooled_projection: Some(true),
        }
    }
}

impl RawConfig {
    /// Parses the configuration of `network`.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub(super) fn read(text: &str, network: &'static str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Error::Json { network, error })
    }

    /// The configuration of a transformer.
    ///
    /// # Errors
    /// [`Error::Config`] for values that are impossible or not supported.
    pub(super) fn transformer(&self, network: &'static str) -> Result<Sd3Config> {
        let refuse = |key, found: String, expected: String| Err(Error::Config { network, key, found, expected });
        let (channels, layers) = (1..=MAX_CHANNELS, 1..=MAX_TRANSFORMER_LAYERS);
        for (key, value, range) in [
            ("in_channels", self.in_channels, &channels),
            ("out_channels", self.out_channels, &channels),
            ("patch_size", self.patch_size, &(1..=MAX_KERNEL)),
            ("pos_embed_max_size", self.pos_embed_max_size, &(1..=MAX_POSITIONS)),
            ("num_layers", self.num_layers, &layers),
            ("num_attention_heads", self.num_attention_heads, &channels),
            ("attention_head_dim", self.attention_head_dim, &channels),
            ("pooled_projection_dim", self.pooled_projection_dim, &channels),
        ] {
            check(network, key, value, range)?;
        }
        let Some(context_dim) = self.joint_attention_dim else {
            return refuse("joint_attention_dim", "null".into(), limits::expected(&channels));
        };
        check(network, "joint_attention_dim", context_dim, &channels)?;
        let width = self.num_attention_heads * self.attention_head_dim;
        if width > MAX_CHANNELS {
            let most = MAX_CHANNELS / self.attention_head_dim;
            let expected = format!("at most {most} for heads of {}", self.attention_head_dim);
            return refuse("num_attention_heads", self.num_attention_heads.to_string(), expected);
        }
        if self.caption_projection_dim != width {
            let expected = format!("{width}, the channels of all heads");
            return refuse("caption_projection_dim", self.caption_projection_dim.to_string(), expected);
        }
        if self.in_channels < self.out_channels {
            let expected = format!("at least {}, as many as the output has", self.out_channels);
            return refuse("in_channels", self.in_channels.to_string(), expected);
        }
        let qk_norm = match self.qk_norm.as_deref() {
            None => false,
            Some("rms_norm") => true,
            Some(other) => return refuse("qk_norm", other.into(), "null or rms_norm".into()),
        };
        let mut dual_layers = self.dual_attention_layers.clone().unwrap_or_default();
        dual_layers.sort_unstable();
        dual_layers.dedup();
        if let Some(layer) = dual_layers.last().filter(|layer| **layer >= self.num_layers) {
            let expected = format!("numbers of blocks less than {}", self.num_layers);
            return refuse("dual_attention_layers", layer.to_string(), expected);
        }
        Ok(Sd3Config {
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            patch_size: self.patch_size,
            pos_embed_max_size: self.pos_embed_max_size,
            num_layers: self.num_layers,
            num_heads: self.num_attention_heads,
            head_dim: self.attention_head_dim,
            context_dim,
            pooled_dim: self.pooled_projection_dim,
            qk_norm,
            dual_layers,
        })
    }
}

/// Refuses a value outside of `range`.
pub(super) fn check(
    network: &'static str,
    key: &'static str,
    value: usize,
    range: &RangeInclusive<usize>,
) -> Result<()> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(Error::Config { network, key, found: value.to_string(), expected: limits::expected(range) }),
    }
}
