//! The configuration of an `AutoencoderKL`.

use candle_core::{Device, Tensor};
use kiln_nn::TensorLike;
use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LAYERS, MAX_LEVELS};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::frames;

/// Diffusers' `config.json` of an `AutoencoderKL`, with diffusers' defaults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Channels of the encoder's input image.
    pub in_channels: usize,
    /// Channels of the decoder's output image.
    pub out_channels: usize,
    /// Channels of every block, the largest feature map first.
    pub block_out_channels: Vec<usize>,
    /// The channels of the decoder's blocks, if they differ from the encoder's.
    pub decoder_block_out_channels: Option<Vec<usize>>,
    /// Residual blocks of an encoder block; a decoder block has one more.
    pub layers_per_block: usize,
    /// Channels of the latents. Of an autoencoder with patches these are four times those that `config.json` has.
    pub latent_channels: usize,
    /// Groups of all group normalizations.
    pub norm_num_groups: usize,
    /// The factor from the encoder's latents to those of the U-Net.
    pub scaling_factor: f64,
    /// The value that is subtracted from the encoder's latents before scaling.
    pub shift_factor: Option<f64>,
    /// The means of the latents' channels, which together with [`VaeConfig::latents_std`] replace the shift.
    pub latents_mean: Option<Vec<f64>>,
    /// Standard deviations of the latents' channels.
    pub latents_std: Option<Vec<f64>>,
    /// Whether a 1x1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1x1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
    /// Whether the middle blocks have attention.
    pub mid_block_add_attention: bool,
    /// Whether half precision overflows in this network, so that it should run in f32.
    pub force_upcast: bool,
    /// Added to the variances of the latents, if it has patches.
    pub batch_norm_eps: f64,
    #[serde(rename = "_class_name")]
    class: String,
    patch_size: Option<Vec<usize>>,
    act_fn: String,
    down_block_types: Vec<String>,
    up_block_types: Vec<String>,
}

/// The class of FLUX.2's autoencoder, whose latents are patches with a mean and a variance for each channel among its weights.
const PATCHED_CLASS: &str = "AutoencoderKLFlux2";
/// Pixels along each side of a patch.
pub(crate) const PATCH: usize = 2;

impl Default for VaeConfig {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            block_out_channels: vec![64],
            decoder_block_out_channels: None,
            layers_per_block: 1,
            latent_channels: 4,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            shift_factor: None,
            latents_mean: None,
            latents_std: None,
            use_quant_conv: true,
            use_post_quant_conv: true,
            mid_block_add_attention: true,
            force_upcast: true,
            batch_norm_eps: 1e-4,
            class: String::new(),
            patch_size: None,
            act_fn: "silu".into(),
            down_block_types: Vec::new(),
            up_block_types: Vec::new(),
        }
    }
}

/// The epsilon of all group normalizations.
pub(crate) const EPS: f64 = 1e-6;

impl VaeConfig {
    /// Reads diffusers' `config.json`.
    ///
    /// # Errors
    /// [`Error::Json`], or [`Error::Config`] for values that are impossible or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut config: Self = serde_json::from_str(text)?;
        if config.has_frames() {
            config = frames::read(text)?;
            config.validate()?;
            return Ok(config);
        }
        config.validate()?;
        if config.has_patches() {
            config.latent_channels *= PATCH * PATCH;
            (config.scaling_factor, config.shift_factor) = (1.0, None);
        } else {
            config.class.clear(); // networks that are alike compare as equal
        }
        Ok(config)
    }

    /// Whether the latents are patches of 2 x 2, normalized by statistics among the weights: the autoencoder of FLUX.2.
    pub fn has_patches(&self) -> bool {
        self.class == PATCHED_CLASS
    }

    /// Whether it is an autoencoder of videos, which has convolutions in time too: that of Qwen-Image.
    pub fn has_frames(&self) -> bool {
        self.class == frames::CLASS
    }

    /// The default configuration of a class.
    pub(crate) fn of_class(class: &str) -> Self {
        Self { class: class.into(), ..Self::default() }
    }

    /// The width of a latent in pixels: 8 for Stable Diffusion, 16 with patches.
    pub fn downscale(&self) -> usize {
        let patch = if self.has_patches() { PATCH } else { 1 };
        patch << (self.block_out_channels.len() - 1)
    }

    /// Channels between encoder and decoder, before they are made patches.
    pub(crate) fn coded_channels(&self) -> usize {
        if self.has_patches() { self.latent_channels / (PATCH * PATCH) } else { self.latent_channels }
    }

    /// Channels of every block of the decoder, the largest feature map first.
    pub(crate) fn decoder_channels(&self) -> &[usize] {
        self.decoder_block_out_channels.as_deref().unwrap_or(&self.block_out_channels)
    }

    /// Converts the U-Net's latents `(b, c, h, w)` to the decoder's.
    pub fn unscale<T: TensorLike>(&self, latents: &T) -> Result<T> {
        if let Some((mean, std)) = self.channel_statistics(latents)? {
            let scaled = latents.broadcast_mul(&std)?.affine(1.0 / self.scaling_factor, 0.0)?;
            return Ok(scaled.broadcast_add(&mean)?);
        }
        Ok(latents.affine(1.0 / self.scaling_factor, self.shift_factor.unwrap_or(0.0))?)
    }

    /// The configuration of latents that are scaled and not shifted.
    #[must_use]
    pub fn without_shift(self) -> Self {
        Self { shift_factor: None, ..self }
    }

    /// Converts the encoder's latents `(b, c, h, w)` to the U-Net's.
    pub fn scale(&self, latents: &Tensor) -> Result<Tensor> {
        if let Some((mean, std)) = self.channel_statistics(latents)? {
            return Ok((latents.broadcast_sub(&mean)?.broadcast_div(&std)? * self.scaling_factor)?);
        }
        let shift = self.shift_factor.unwrap_or(0.0);
        Ok(((latents - shift)? * self.scaling_factor)?)
    }

    /// The mean and standard deviation of every channel, `(c, 1, 1)`, if the configuration has them.
    fn channel_statistics<T: TensorLike>(&self, latents: &T) -> Result<Option<(T, T)>> {
        let (Some(mean), Some(std)) = (&self.latents_mean, &self.latents_std) else { return Ok(None) };
        let column = |values: &[f64]| -> Result<T> {
            Ok(latents.new_constant(&Tensor::from_slice(values, (values.len(), 1, 1), &Device::Cpu)?)?)
        };
        Ok(Some((column(mean)?, column(std)?)))
    }

    fn validate(&self) -> Result<()> {
        let error = |key, found: String, expected: &str| Err(Error::Config { key, found, expected: expected.into() });
        let channels = &self.block_out_channels;
        if channels.is_empty() || channels.len() > MAX_LEVELS {
            let expected = format!("1 to {MAX_LEVELS}");
            return error("block_out_channels", format!("a list of {}", channels.len()), &expected);
        }
        for (key, value, most) in [
            ("norm_num_groups", self.norm_num_groups, MAX_CHANNELS),
            ("in_channels", self.in_channels, MAX_CHANNELS),
            ("out_channels", self.out_channels, MAX_CHANNELS),
            ("latent_channels", self.latent_channels, MAX_CHANNELS / (PATCH * PATCH)),
            ("layers_per_block", self.layers_per_block, MAX_LAYERS),
            ("block_out_channels", channels.iter().copied().max().unwrap_or_default(), MAX_CHANNELS),
        ] {
            let range = 1..=most;
            if !range.contains(&value) {
                return error(key, value.to_string(), &limits::expected(&range));
            }
        }
        if self.decoder_channels().len() != channels.len() {
            let (key, found) = ("decoder_block_out_channels", format!("a list of {}", self.decoder_channels().len()));
            return error(key, found, &format!("a list of {}", channels.len()));
        }
        if let Some(most) = self.decoder_channels().iter().find(|&&c| c > MAX_CHANNELS) {
            let expected = limits::expected(&(1..=MAX_CHANNELS));
            return error("decoder_block_out_channels", most.to_string(), &expected);
        }
        if let Some(other) = self.patch_size.as_ref().filter(|size| self.has_patches() && **size != [PATCH; 2]) {
            return error("patch_size", format!("{other:?}"), &format!("{:?}", [PATCH; 2]));
        }
        if !limits::is_epsilon(self.batch_norm_eps) {
            return error("batch_norm_eps", self.batch_norm_eps.to_string(), "more than 0 and at most 1");
        }
        if let Some(odd) =
            channels.iter().chain(self.decoder_channels()).find(|&&c| c == 0 || c % self.norm_num_groups != 0)
        {
            let expected = format!("a multiple of {} groups", self.norm_num_groups);
            return error("block_out_channels", odd.to_string(), &expected);
        }
        if !self.scaling_factor.is_finite() || self.scaling_factor == 0.0 {
            return error("scaling_factor", self.scaling_factor.to_string(), "a number other than 0");
        }
        if !["silu", "swish"].contains(&self.act_fn.as_str()) {
            return error("act_fn", self.act_fn.clone(), "silu");
        }
        for (key, types, expected) in [
            ("down_block_types", &self.down_block_types, "DownEncoderBlock2D"),
            ("up_block_types", &self.up_block_types, "UpDecoderBlock2D"),
        ] {
            if let Some(other) = types.iter().find(|name| *name != expected) {
                return error(key, other.clone(), expected);
            }
        }
        for (key, values) in [("latents_mean", &self.latents_mean), ("latents_std", &self.latents_std)] {
            if let Some(values) = values
                && values.len() != self.latent_channels
            {
                return error(key, format!("a list of {}", values.len()), "one value for each latent channel");
            }
            if let Some(zero) = values.iter().flatten().find(|&&value| key == "latents_std" && value <= 0.0) {
                return error(key, zero.to_string(), "numbers over 0");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn scaling_is_undone() {
        let latents = Tensor::arange(0f32, 16., &Device::Cpu).unwrap().reshape((1, 4, 2, 2)).unwrap();
        for json in [
            r#"{"scaling_factor": 0.5}"#,
            r#"{"scaling_factor": 0.3611, "shift_factor": 0.1159}"#,
            r#"{"scaling_factor": 0.5, "latents_mean": [1, 2, 3, 4], "latents_std": [2, 4, 8, 16]}"#,
        ] {
            let config = VaeConfig::from_json(json).unwrap();
            let back = config.scale(&config.unscale(&latents).unwrap()).unwrap();
            let error = (back - &latents).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(error < 1e-5, "{json}: {error}");
        }
    }

    #[test]
    fn the_decoder_gets_latents_divided_then_shifted() {
        let config = VaeConfig::from_json(r#"{"scaling_factor": 0.5, "shift_factor": 3}"#).unwrap();
        let latents = Tensor::full(2f32, (1, 4, 1, 1), &Device::Cpu).unwrap();
        assert_eq!(config.unscale(&latents).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap(), [7.0; 4]);
    }

    #[test]
    fn errors_name_the_key() {
        let message = |json| VaeConfig::from_json(json).unwrap_err().to_string();
        assert!(message(r#"{"norm_num_groups": 7}"#).contains("`block_out_channels` is 64, expected a multiple of 7"));
        for number in ["0", "10000", "9223372036854775808"] {
            let json = format!(r#"{{"layers_per_block": {number}}}"#);
            let message = VaeConfig::from_json(&json).unwrap_err().to_string();
            assert!(
                message.contains(&format!("`layers_per_block` is {number}, expected a number from 1 to 64")),
                "{message}"
            );
        }
        let levels = format!(r#"{{"block_out_channels": {:?}}}"#, vec![64; 1000]);
        assert!(VaeConfig::from_json(&levels).unwrap_err().to_string().contains("a list of 1000, expected 1 to 8"));
        assert!(message(r#"{"latents_mean": [1,1,1,1], "latents_std": [1,1,0,1]}"#).contains("`latents_std` is 0"));
        assert!(message(r#"{"scaling_factor": 0}"#).contains("`scaling_factor` is 0"));
        assert!(message(r#"{"up_block_types": ["AttnUpDecoderBlock2D"]}"#).contains("expected UpDecoderBlock2D"));
    }
}
