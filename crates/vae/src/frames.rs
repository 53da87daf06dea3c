//! The configuration of an autoencoder of videos, for a single frame: that of Qwen-Image.
//!
//! Its convolutions see no later frames. All earlier frames of the first one are zeros, so that a frame alone needs only the last
//! frame of each kernel, and none of the convolutions that join frames.

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LEVELS};
use serde::Deserialize;

use crate::config::VaeConfig;
use crate::error::{Error, Result};

/// The class of Qwen-Image's autoencoder.
pub(crate) const CLASS: &str = "AutoencoderKLQwenImage";

/// The keys of diffusers' `config.json` that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawConfig {
    base_dim: usize,
    z_dim: usize,
    dim_mult: Vec<usize>,
    num_res_blocks: usize,
    attn_scales: Vec<f64>,
    input_channels: usize,
    latents_mean: Vec<f64>,
    latents_std: Vec<f64>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            base_dim: 96,
            z_dim: 16,
            dim_mult: vec![1, 2, 4, 4],
            num_res_blocks: 2,
            attn_scales: Vec::new(),
            input_channels: 3,
            latents_mean: vec![
                -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632,
                -0.1922, -0.9497, 0.2503, -0.2921,
            ],
            latents_std: vec![
                2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382,
                1.1253, 2.8251, 1.916,
            ],
        }
    }
}

/// Reads the `config.json` of the class [`CLASS`] in the terms of the other autoencoders. Values are checked by the caller.
///
/// # Errors
/// [`Error::Json`], or [`Error::Config`] for values that are not supported.
pub(crate) fn read(text: &str) -> Result<VaeConfig> {
    let raw: RawConfig = serde_json::from_str(text)?;
    let refuse = |key, found: String, expected: String| Err(Error::Config { key, found, expected });
    if !raw.attn_scales.is_empty() {
        return refuse("attn_scales", format!("{:?}", raw.attn_scales), "an empty list".into());
    }
    if raw.dim_mult.is_empty() || raw.dim_mult.len() > MAX_LEVELS || raw.dim_mult.first() != Some(&1) {
        let expected = format!("a list of 1 to {MAX_LEVELS} factors, the first of them 1");
        return refuse("dim_mult", format!("{:?}", raw.dim_mult), expected);
    }
    if !(2..=MAX_CHANNELS).contains(&raw.base_dim) || !raw.base_dim.is_multiple_of(2) {
        let expected = format!("an even one that is {}", limits::expected(&(2..=MAX_CHANNELS)));
        return refuse("base_dim", raw.base_dim.to_string(), expected);
    }
    let mut config = VaeConfig::of_class(CLASS);
    (config.in_channels, config.out_channels) = (raw.input_channels, raw.input_channels);
    config.block_out_channels = raw.dim_mult.iter().map(|factor| factor.saturating_mul(raw.base_dim)).collect();
    config.layers_per_block = raw.num_res_blocks;
    config.latent_channels = raw.z_dim;
    config.norm_num_groups = 1;
    config.scaling_factor = 1.0;
    (config.latents_mean, config.latents_std) = (Some(raw.latents_mean), Some(raw.latents_std));
    config.force_upcast = false;
    Ok(config)
}
