//! The configuration of the transformer.

use std::ops::RangeInclusive;

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};
use kiln_nn::limits::{self, MAX_CHANNELS, MAX_TRANSFORMER_LAYERS};
use serde::Deserialize;
use serde_json::Value;

use super::transformer::ZImageTransformer;
use super::{NETWORK, PATCH, TIMESTEPS};
use crate::error::{Error, Result};
use crate::flux::attention::Heads;
use crate::rotary::Rotary;

/// The largest number of channels of the timestep's vector.
const TIME_CHANNELS: usize = 256;

/// The configuration of [`ZImageTransformer`]: diffusers' `ZImageTransformer2DModel`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZImageConfig {
    /// Channels of the latents.
    pub in_channels: usize,
    /// Channels of a text token.
    pub context_dim: usize,
    /// Channels of the tokens inside.
    pub dim: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Blocks for all tokens.
    pub layers: usize,
    /// Blocks for the tokens of the image, and as many for those of the text.
    pub refiner_layers: usize,
    /// Added to the mean squares of the normalizations.
    pub eps: f64,
    /// The channels of a head that turn with each axis of a token's position: the number in the text, row, column.
    pub axes: [usize; 3],
    /// The base of the rotary frequencies.
    pub theta: f64,
}

/// The keys that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawConfig {
    all_patch_size: Vec<usize>,
    all_f_patch_size: Vec<usize>,
    in_channels: usize,
    dim: usize,
    n_layers: usize,
    n_refiner_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    norm_eps: f64,
    qk_norm: bool,
    cap_feat_dim: usize,
    rope_theta: f64,
    t_scale: f64,
    axes_dims: Vec<usize>,
    siglip_feat_dim: Value,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            all_patch_size: vec![PATCH],
            all_f_patch_size: vec![1],
            in_channels: 16,
            dim: 3840,
            n_layers: 30,
            n_refiner_layers: 2,
            n_heads: 30,
            n_kv_heads: 30,
            norm_eps: 1e-5,
            qk_norm: true,
            cap_feat_dim: 2560,
            rope_theta: 256.0,
            t_scale: TIMESTEPS,
            axes_dims: vec![32, 48, 48],
            siglip_feat_dim: Value::Null,
        }
    }
}

fn refuse<T>(key: &'static str, found: impl ToString, expected: impl Into<String>) -> Result<T> {
    Err(Error::Config { network: NETWORK, key, found: found.to_string(), expected: expected.into() })
}

fn check(key: &'static str, value: usize, range: RangeInclusive<usize>) -> Result<()> {
    if range.contains(&value) { Ok(()) } else { refuse(key, value, limits::expected(&range)) }
}

impl ZImageConfig {
    /// Reads diffusers' `config.json`. Missing keys have diffusers' defaults, which are those of Z-Image.
    ///
    /// # Errors
    /// [`Error::Json`], and [`Error::Config`] for values that are impossible or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let raw: RawConfig = serde_json::from_str(text).map_err(|error| Error::Json { network: NETWORK, error })?;
        for (key, found, expected) in
            [("all_patch_size", &raw.all_patch_size, PATCH), ("all_f_patch_size", &raw.all_f_patch_size, 1)]
        {
            if *found != [expected] {
                return refuse(key, format!("{found:?}"), format!("[{expected}]"));
            }
        }
        if !raw.qk_norm {
            return refuse("qk_norm", "false", "true");
        }
        if raw.t_scale != TIMESTEPS {
            return refuse("t_scale", raw.t_scale, TIMESTEPS.to_string());
        }
        if !raw.siglip_feat_dim.is_null() {
            return refuse("siglip_feat_dim", raw.siglip_feat_dim, "null: models with input images are not supported");
        }
        check("in_channels", raw.in_channels, 1..=MAX_CHANNELS / (PATCH * PATCH))?;
        check("cap_feat_dim", raw.cap_feat_dim, 1..=MAX_CHANNELS)?;
        check("dim", raw.dim, 2..=MAX_CHANNELS)?;
        check("n_heads", raw.n_heads, 1..=raw.dim)?;
        check("n_kv_heads", raw.n_kv_heads, raw.n_heads..=raw.n_heads)?;
        check("n_layers", raw.n_layers, 1..=MAX_TRANSFORMER_LAYERS)?;
        check("n_refiner_layers", raw.n_refiner_layers, 0..=MAX_TRANSFORMER_LAYERS)?;
        if !limits::is_epsilon(raw.norm_eps) {
            return refuse("norm_eps", raw.norm_eps, "more than 0 and at most 1");
        }
        if !(raw.rope_theta.is_finite() && raw.rope_theta > 1.0) {
            return refuse("rope_theta", raw.rope_theta, "a number over 1");
        }
        if !raw.dim.is_multiple_of(raw.n_heads) {
            return refuse("n_heads", raw.n_heads, format!("a divisor of `dim`, {}", raw.dim));
        }
        let head_dim = raw.dim / raw.n_heads;
        let Ok(axes) = <[usize; 3]>::try_from(raw.axes_dims.clone()) else {
            return refuse("axes_dims", format!("a list of {}", raw.axes_dims.len()), "a list of 3");
        };
        let sum = axes.iter().fold(0usize, |sum, &axis| sum.saturating_add(axis));
        if sum != head_dim || axes.iter().any(|axis| *axis == 0 || axis % 2 != 0) {
            let expected = format!("even numbers with the sum {head_dim}, the channels of a head");
            return refuse("axes_dims", format!("{axes:?}"), expected);
        }
        Ok(Self {
            in_channels: raw.in_channels,
            context_dim: raw.cap_feat_dim,
            dim: raw.dim,
            num_heads: raw.n_heads,
            layers: raw.n_layers,
            refiner_layers: raw.n_refiner_layers,
            eps: raw.norm_eps,
            axes,
            theta: raw.rope_theta,
        })
    }

    /// Channels of an image token at input and output.
    pub(super) fn token_channels(&self) -> usize {
        PATCH * PATCH * self.in_channels
    }

    /// Channels of the timestep's vector.
    pub(super) fn time_channels(&self) -> usize {
        self.dim.min(TIME_CHANNELS)
    }

    /// Channels of the hidden layer of the feed-forward layers.
    pub(super) fn hidden(&self) -> usize {
        self.dim * 8 / 3
    }

    /// The heads of all attentions.
    pub(super) fn heads(&self) -> Heads {
        let (num_heads, head_dim) = (self.num_heads, self.dim / self.num_heads.max(1));
        Heads { num_heads, head_dim, bias: false, eps: self.eps }
    }

    /// The axes of positions.
    pub(super) fn rotary(&self) -> Rotary<3> {
        Rotary { axes: self.axes, theta: self.theta }
    }
}

impl DenoiserConfig for ZImageConfig {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(ZImageTransformer::new(*self))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.context_dim), pooled: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_configuration_is_z_image() {
        let config = ZImageConfig::from_json("{}").unwrap();
        assert_eq!((config.hidden(), config.time_channels(), config.token_channels()), (10_240, 256, 64));
        assert_eq!(config.build().segments().parameters(), 6_154_908_736);
        assert_eq!(config.text(), TextWidths { context: Some(2560), pooled: None });
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            ("[", "the Z-Image transformer's configuration cannot be read"),
            (r#"{"all_patch_size": [1, 2]}"#, "`all_patch_size` is [1, 2], expected [2]"),
            (r#"{"qk_norm": false}"#, "`qk_norm` is false"),
            (r#"{"siglip_feat_dim": 1152}"#, "`siglip_feat_dim` is 1152, expected null"),
            (r#"{"t_scale": 1}"#, "`t_scale` is 1, expected 1000"),
            (r#"{"n_heads": 0}"#, "`n_heads` is 0"),
            (r#"{"n_heads": 7}"#, "`n_kv_heads` is 30, expected a number from 7 to 7"),
            (r#"{"n_heads": 7, "n_kv_heads": 7}"#, "`n_heads` is 7, expected a divisor of `dim`, 3840"),
            (r#"{"n_layers": 0}"#, "`n_layers` is 0"),
            (r#"{"axes_dims": [32, 48, 50]}"#, "`axes_dims` is [32, 48, 50], expected even numbers with the sum 128"),
            (r#"{"norm_eps": 0}"#, "`norm_eps` is 0"),
            (r#"{"rope_theta": 0.5}"#, "`rope_theta` is 0.5"),
        ] {
            let message = ZImageConfig::from_json(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
