//! The configuration of the transformer.

use std::ops::RangeInclusive;

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};
use kiln_nn::limits::{self, MAX_CHANNELS, MAX_TRANSFORMER_LAYERS};
use serde::Deserialize;

use super::NETWORK;
use super::transformer::Flux2Transformer;
use crate::error::{Error, Result};
use crate::flux::attention::Heads;
use crate::rotary::Rotary;

/// The largest width of the feed-forward layers, relative to the channels.
const MAX_RATIO: f64 = 16.0;

/// The configuration of [`Flux2Transformer`]: diffusers' `Flux2Transformer2DModel`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flux2Config {
    /// Channels of the latents.
    pub in_channels: usize,
    /// Channels of a text token.
    pub context_dim: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub hidden: usize,
    /// Double blocks, which have weights of their own for text and image.
    pub layers: usize,
    /// Single blocks, which have one set of weights for both.
    pub single_layers: usize,
    /// Channels of the sinusoidal embedding of the timestep.
    pub time_channels: usize,
    /// The channels of a head that turn with each axis of a token's position: index of the image, row, column, number in the text.
    pub axes: [usize; 4],
    /// The base of the rotary frequencies.
    pub theta: f64,
    /// Added to variances and mean squares of the normalizations.
    pub eps: f64,
}

/// The keys that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawConfig {
    patch_size: usize,
    in_channels: usize,
    out_channels: Option<usize>,
    num_layers: usize,
    num_single_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    joint_attention_dim: usize,
    timestep_guidance_channels: usize,
    mlp_ratio: f64,
    axes_dims_rope: Vec<usize>,
    rope_theta: f64,
    eps: f64,
    guidance_embeds: bool,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            patch_size: 1,
            in_channels: 128,
            out_channels: None,
            num_layers: 8,
            num_single_layers: 48,
            attention_head_dim: 128,
            num_attention_heads: 48,
            joint_attention_dim: 15_360,
            timestep_guidance_channels: 256,
            mlp_ratio: 3.0,
            axes_dims_rope: vec![32; 4],
            rope_theta: 2000.0,
            eps: 1e-6,
            guidance_embeds: true,
        }
    }
}

fn refuse<T>(key: &'static str, found: impl ToString, expected: impl Into<String>) -> Result<T> {
    Err(Error::Config { network: NETWORK, key, found: found.to_string(), expected: expected.into() })
}

fn check(key: &'static str, value: usize, range: RangeInclusive<usize>) -> Result<()> {
    if range.contains(&value) { Ok(()) } else { refuse(key, value, limits::expected(&range)) }
}

impl Flux2Config {
    /// Reads diffusers' `config.json`. Missing keys have diffusers' defaults, which are those of FLUX.2 dev.
    ///
    /// # Errors
    /// [`Error::Json`], and [`Error::Config`] for values that are impossible or not supported: a guidance scale as an input, as
    /// FLUX.2 dev has it.
    pub fn from_json(text: &str) -> Result<Self> {
        let raw: RawConfig = serde_json::from_str(text).map_err(|error| Error::Json { network: NETWORK, error })?;
        if raw.guidance_embeds {
            return refuse("guidance_embeds", "true", "false, as klein models have it");
        }
        check("patch_size", raw.patch_size, 1..=1)?;
        check("in_channels", raw.in_channels, 1..=MAX_CHANNELS)?;
        if let Some(other) = raw.out_channels.filter(|&out| out != raw.in_channels) {
            return refuse("out_channels", other, format!("null or `in_channels`, {}", raw.in_channels));
        }
        check("joint_attention_dim", raw.joint_attention_dim, 1..=MAX_CHANNELS)?;
        check("num_layers", raw.num_layers, 0..=MAX_TRANSFORMER_LAYERS)?;
        check("num_single_layers", raw.num_single_layers, 0..=MAX_TRANSFORMER_LAYERS)?;
        if raw.num_layers + raw.num_single_layers == 0 {
            return refuse("num_layers", 0, "at least one block");
        }
        let (heads, head_dim) = (raw.num_attention_heads, raw.attention_head_dim);
        check("attention_head_dim", head_dim, 2..=MAX_CHANNELS)?;
        check("num_attention_heads", heads, 1..=MAX_CHANNELS / head_dim)?;
        check("timestep_guidance_channels", raw.timestep_guidance_channels, 2..=MAX_CHANNELS)?;
        if !raw.timestep_guidance_channels.is_multiple_of(2) {
            return refuse("timestep_guidance_channels", raw.timestep_guidance_channels, "an even number");
        }
        if !(raw.mlp_ratio > 0.0 && raw.mlp_ratio <= MAX_RATIO) {
            return refuse("mlp_ratio", raw.mlp_ratio, format!("more than 0 and at most {MAX_RATIO}"));
        }
        let hidden = (raw.mlp_ratio * (heads * head_dim) as f64) as usize;
        if hidden == 0 {
            return refuse("mlp_ratio", raw.mlp_ratio, "a number that leaves at least one channel");
        }
        if !limits::is_epsilon(raw.eps) {
            return refuse("eps", raw.eps, "more than 0 and at most 1");
        }
        if !(raw.rope_theta.is_finite() && raw.rope_theta > 1.0) {
            return refuse("rope_theta", raw.rope_theta, "a number over 1");
        }
        let Ok(axes) = <[usize; 4]>::try_from(raw.axes_dims_rope.clone()) else {
            return refuse("axes_dims_rope", format!("a list of {}", raw.axes_dims_rope.len()), "a list of 4");
        };
        let sum = axes.iter().fold(0usize, |sum, &axis| sum.saturating_add(axis));
        if sum != head_dim || axes.iter().any(|axis| *axis == 0 || axis % 2 != 0) {
            let expected = format!("even numbers with the sum {head_dim}, the channels of a head");
            return refuse("axes_dims_rope", format!("{axes:?}"), expected);
        }
        Ok(Self {
            in_channels: raw.in_channels,
            context_dim: raw.joint_attention_dim,
            num_heads: heads,
            head_dim,
            hidden,
            layers: raw.num_layers,
            single_layers: raw.num_single_layers,
            time_channels: raw.timestep_guidance_channels,
            axes,
            theta: raw.rope_theta,
            eps: raw.eps,
        })
    }

    /// Channels of the tokens inside.
    pub fn channels(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The heads of all attentions.
    pub(super) fn heads(&self) -> Heads {
        Heads { num_heads: self.num_heads, head_dim: self.head_dim, bias: false, eps: self.eps }
    }

    /// The axes of positions.
    pub(super) fn rotary(&self) -> Rotary<4> {
        Rotary { axes: self.axes, theta: self.theta }
    }
}

impl DenoiserConfig for Flux2Config {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(Flux2Transformer::new(*self))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.context_dim), pooled: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of parameters of the published models.
    #[test]
    fn both_models_have_their_parameters() {
        let parameters = |json: &str| Flux2Config::from_json(json).unwrap().build().segments().parameters();
        let small = r#"{"guidance_embeds": false, "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24,
            "joint_attention_dim": 7680}"#;
        assert_eq!(parameters(small), 3_875_544_576);
        let large = r#"{"guidance_embeds": false, "num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32,
            "joint_attention_dim": 12288}"#;
        assert_eq!(parameters(large), 9_078_581_248);
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            ("[", "the FLUX.2 transformer's configuration cannot be read"),
            ("{}", "`guidance_embeds` is true, expected false"),
            (r#"{"guidance_embeds": false, "patch_size": 2}"#, "`patch_size` is 2"),
            (r#"{"guidance_embeds": false, "out_channels": 64}"#, "`out_channels` is 64, expected null"),
            (r#"{"guidance_embeds": false, "num_layers": 0, "num_single_layers": 0}"#, "expected at least one block"),
            (r#"{"guidance_embeds": false, "mlp_ratio": 0}"#, "`mlp_ratio` is 0"),
            (r#"{"guidance_embeds": false, "axes_dims_rope": [32, 32, 64]}"#, "`axes_dims_rope` is a list of 3"),
            (r#"{"guidance_embeds": false, "attention_head_dim": 64}"#, "expected even numbers with the sum 64"),
            (r#"{"guidance_embeds": false, "timestep_guidance_channels": 5}"#, "expected an even number"),
        ] {
            let message = Flux2Config::from_json(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
