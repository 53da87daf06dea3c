//! The configuration of an `AutoencoderTiny`.

use candle_core::Tensor;
use kiln_nn::TensorLike;
use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LAYERS, MAX_LEVELS};
use serde::Deserialize;

use crate::error::{Error, Result};

/// Diffusers' `config.json` of an `AutoencoderTiny`. Its defaults are TAESD, for the latents of Stable Diffusion.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct TinyConfig {
    /// Channels of the encoder's input image.
    pub in_channels: usize,
    /// Channels of the decoder's output image.
    pub out_channels: usize,
    /// Channels of the encoder's stages, all the same.
    pub encoder_block_out_channels: Vec<usize>,
    /// Channels of the decoder's stages, all the same.
    pub decoder_block_out_channels: Vec<usize>,
    /// Residual blocks of every stage of the encoder. Each stage but the first downsamples by 2.
    pub num_encoder_blocks: Vec<usize>,
    /// Residual blocks of every stage of the decoder. Each stage but the last upsamples.
    pub num_decoder_blocks: Vec<usize>,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// The upsampling factor of a stage of the decoder.
    pub upsampling_scaling_factor: usize,
    /// The factor from the encoder's latents to those of the U-Net: TAESD outputs the U-Net's latents, so 1.
    pub scaling_factor: f64,
    /// The value that is subtracted from the encoder's latents before scaling.
    pub shift_factor: Option<f64>,
    /// The range of latents, plus or minus, that is stored in 8 bits: `z / (2 latent_magnitude) + latent_shift` is 0 to
    /// 1. The networks do not use it.
    pub latent_magnitude: f64,
    /// See `latent_magnitude`.
    pub latent_shift: f64,
    act_fn: String,
    upsample_fn: String,
    #[serde(rename = "_class_name")]
    class_name: String,
}

impl Default for TinyConfig {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            encoder_block_out_channels: vec![64; 4],
            decoder_block_out_channels: vec![64; 4],
            num_encoder_blocks: vec![1, 3, 3, 3],
            num_decoder_blocks: vec![3, 3, 3, 1],
            latent_channels: 4,
            upsampling_scaling_factor: 2,
            scaling_factor: 1.0,
            shift_factor: None,
            latent_magnitude: 3.0,
            latent_shift: 0.5,
            act_fn: "relu".into(),
            upsample_fn: "nearest".into(),
            class_name: "AutoencoderTiny".into(),
        }
    }
}

impl TinyConfig {
    /// Reads diffusers' `config.json`.
    ///
    /// # Errors
    /// [`Error::Json`], or [`Error::Config`] for values that are impossible or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let config: Self = serde_json::from_str(text)?;
        config.validate()?;
        Ok(config)
    }

    /// The downscaling factor of the encoder: 8 for TAESD.
    pub fn downscale(&self) -> usize {
        1 << (self.num_encoder_blocks.len() - 1)
    }

    /// The upscaling factor of the decoder: 8 for TAESD.
    pub fn upscale(&self) -> usize {
        self.upsampling_scaling_factor.pow(self.num_decoder_blocks.len() as u32 - 1)
    }

    /// Converts the U-Net's latents `(b, c, h, w)` to the decoder's.
    pub fn unscale<T: TensorLike>(&self, latents: &T) -> Result<T> {
        Ok(latents.affine(1.0 / self.scaling_factor, self.shift_factor.unwrap_or(0.0))?)
    }

    /// Converts the encoder's latents `(b, c, h, w)` to the U-Net's.
    pub fn scale(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(((latents - self.shift_factor.unwrap_or(0.0))? * self.scaling_factor)?)
    }

    fn validate(&self) -> Result<()> {
        let error = |key, found: String, expected: &str| Err(Error::Config { key, found, expected: expected.into() });
        for (key, found, expected) in [
            ("_class_name", &self.class_name, "AutoencoderTiny"),
            ("act_fn", &self.act_fn, "relu"),
            ("upsample_fn", &self.upsample_fn, "nearest"),
        ] {
            if found != expected {
                return error(key, found.clone(), expected);
            }
        }
        for (key, channels, blocks_key, blocks) in [
            (
                "encoder_block_out_channels",
                &self.encoder_block_out_channels,
                "num_encoder_blocks",
                &self.num_encoder_blocks,
            ),
            (
                "decoder_block_out_channels",
                &self.decoder_block_out_channels,
                "num_decoder_blocks",
                &self.num_decoder_blocks,
            ),
        ] {
            let range = 1..=MAX_CHANNELS;
            if channels.is_empty() || channels.len() > MAX_LEVELS {
                return error(key, format!("a list of {}", channels.len()), &format!("1 to {MAX_LEVELS}"));
            }
            if channels.iter().any(|c| !range.contains(c) || *c != channels[0]) {
                let expected = format!("the same number for all stages, {}", limits::expected(&range));
                return error(key, format!("{channels:?}"), &expected);
            }
            if blocks.len() != channels.len() || blocks.iter().any(|&count| count > MAX_LAYERS) {
                let expected = format!("a list as long as `{key}` of numbers up to {MAX_LAYERS}");
                let found = if blocks.len() > MAX_LEVELS {
                    format!("a list of {}", blocks.len())
                } else {
                    format!("{blocks:?}")
                };
                return error(blocks_key, found, &expected);
            }
        }
        for (key, value) in [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("latent_channels", self.latent_channels),
        ] {
            let range = 1..=MAX_CHANNELS;
            if !range.contains(&value) {
                return error(key, value.to_string(), &limits::expected(&range));
            }
        }
        if !(1..=8).contains(&self.upsampling_scaling_factor) {
            return error("upsampling_scaling_factor", self.upsampling_scaling_factor.to_string(), "1 to 8");
        }
        if !self.scaling_factor.is_finite() || self.scaling_factor == 0.0 {
            return error("scaling_factor", self.scaling_factor.to_string(), "a number other than 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_keys_are_taesd() {
        let config = TinyConfig::from_json("{}").unwrap();
        assert_eq!(config, TinyConfig::default());
        assert_eq!((config.downscale(), config.upscale()), (8, 8));
    }

    #[test]
    fn errors_name_the_key() {
        let message = |json| TinyConfig::from_json(json).unwrap_err().to_string();
        let kl = message(r#"{"_class_name": "AutoencoderKL"}"#);
        assert!(kl.contains("`_class_name` is AutoencoderKL, expected AutoencoderTiny"), "{kl}");
        assert!(message(r#"{"act_fn": "silu"}"#).contains("expected relu"));
        assert!(message(r#"{"num_encoder_blocks": [1, 3]}"#).contains("as long as `encoder_block_out_channels`"));
        assert!(message(r#"{"decoder_block_out_channels": [64, 32, 64, 64]}"#).contains("[64, 32, 64, 64]"));
        assert!(message(r#"{"scaling_factor": 0}"#).contains("`scaling_factor` is 0"));
        assert!(message(r#"{"upsampling_scaling_factor": 99}"#).contains("expected 1 to 8"));
    }
}
