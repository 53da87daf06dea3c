//! The configuration of a T2I-Adapter.

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LAYERS, MAX_LEVELS};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::UnetConfig;
use crate::error::{Error, Result};

/// A T2I-Adapter's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Channels of the control image: 3, or 1 for a gray one.
    pub image_channels: usize,
    /// Channels of each feature map.
    pub channels: Vec<usize>,
    /// Residual blocks of each level.
    pub layers: usize,
    /// Pixels of the control image for one of the first feature map, in each direction.
    pub downscale: usize,
    /// How its levels are built.
    pub form: AdapterForm,
    /// Side of the kernel of each residual block's second convolution.
    pub second_kernel: usize,
}

/// How the levels of a T2I-Adapter are built (`adapter_type` of diffusers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterForm {
    /// `full_adapter`: every level but the first has maps of half the size.
    Full,
    /// `full_adapter_xl`: the third level alone has maps of half the size.
    FullXl,
    /// `light_adapter`: as the full form, with a quarter of the channels within a level.
    Light,
}

/// diffusers' configuration, with its defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawAdapter {
    in_channels: usize,
    channels: Vec<usize>,
    num_res_blocks: usize,
    downscale_factor: usize,
    adapter_type: String,
}

impl Default for RawAdapter {
    fn default() -> Self {
        Self {
            in_channels: 3,
            channels: vec![320, 640, 1280, 1280],
            num_res_blocks: 2,
            downscale_factor: 8,
            adapter_type: "full_adapter".into(),
        }
    }
}

/// The largest factor between image and first map.
const MAX_DOWNSCALE: usize = 64;
/// The side of the square of pixels that the first layer reads in Stable Diffusion XL's adapters, and in the others.
const DOWNSCALE_XL: usize = 16;
const DOWNSCALE: usize = 8;

impl AdapterConfig {
    /// Reads the `config.json` of diffusers' `T2IAdapter`.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::Config`] for impossible values, [`Error::Unsupported`] for other forms.
    pub fn from_json(text: &str) -> Result<Self> {
        // An object first: serde reads a list as the fields in their order.
        let fields: Map<String, Value> = serde_json::from_str(text)?;
        let raw: RawAdapter = serde_json::from_value(fields.into())?;
        let (form, second_kernel) = match raw.adapter_type.as_str() {
            "full_adapter" => (AdapterForm::Full, 1),
            "full_adapter_xl" => (AdapterForm::FullXl, 1),
            "light_adapter" => (AdapterForm::Light, 3),
            other => {
                let supported = "full_adapter, full_adapter_xl and light_adapter";
                return Err(Error::Unsupported { key: "adapter_type", found: other.into(), supported });
            }
        };
        let mut channels = raw.channels;
        if let (AdapterForm::Light, Some(&last)) = (form, channels.last()) {
            channels.push(last); // the light form has one level more than its configuration says
        }
        let config = Self {
            image_channels: raw.in_channels,
            channels,
            layers: raw.num_res_blocks,
            downscale: raw.downscale_factor,
            form,
            second_kernel,
        };
        config.check()?;
        Ok(config)
    }

    /// Derives the configuration from `shape`, which gives a tensor's shape by its name in diffusers.
    ///
    /// # Errors
    /// [`Error::Config`] if tensors are missing that every adapter has, or have shapes of none.
    pub fn from_shapes(shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<Self> {
        let dim = |name: &str, axis: usize| shape(name).and_then(|shape| shape.get(axis).copied());
        let need = |name: &str, axis: usize| {
            dim(name, axis).ok_or_else(|| Error::Config {
                key: "tensors",
                found: format!("without `{name}`"),
                expected: "those of a T2I-Adapter".into(),
            })
        };
        let block = |level: usize, layer: usize| format!("adapter.body.{level}.resnets.{layer}.block1.weight");
        let is_light = shape("adapter.body.0.out_conv.weight").is_some();
        let level = |level: usize| match is_light {
            true => dim(&format!("adapter.body.{level}.out_conv.weight"), 0),
            false => dim(&block(level, 0), 0),
        };
        let channels: Vec<usize> = (0..MAX_LEVELS).map_while(level).collect();
        let layers = (0..MAX_LAYERS).take_while(|&layer| shape(&block(0, layer)).is_some()).count();
        let depth = need(if is_light { "adapter.body.0.in_conv.weight" } else { "adapter.conv_in.weight" }, 1)?;
        // The image's channels are 3 or 1, so that the number of values of a square says which and how large it is.
        let is_xl = [DOWNSCALE_XL * DOWNSCALE_XL, 3 * DOWNSCALE_XL * DOWNSCALE_XL].contains(&depth);
        let downscale = if is_xl { DOWNSCALE_XL } else { DOWNSCALE };
        let config = Self {
            image_channels: depth / (downscale * downscale),
            channels,
            layers,
            downscale,
            form: match (is_light, is_xl) {
                (true, _) => AdapterForm::Light,
                (false, true) => AdapterForm::FullXl,
                (false, false) => AdapterForm::Full,
            },
            second_kernel: need("adapter.body.0.resnets.0.block2.weight", 2)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Refuses values that no adapter has.
    fn check(&self) -> Result<()> {
        let error = |key, found: String, expected: String| Err(Error::Config { key, found, expected });
        if ![1, 3].contains(&self.image_channels) {
            return error("in_channels", self.image_channels.to_string(), "1 or 3".into());
        }
        if !(1..=MAX_LEVELS).contains(&self.channels.len()) {
            let found = format!("a list of {}", self.channels.len());
            return error("channels", found, format!("a list of 1 to {MAX_LEVELS}"));
        }
        let range = if self.form == AdapterForm::Light { 4..=MAX_CHANNELS } else { 1..=MAX_CHANNELS };
        if let Some(channels) = self.channels.iter().find(|channels| !range.contains(channels)) {
            return error("channels", channels.to_string(), limits::expected(&range));
        }
        if !(1..=MAX_LAYERS).contains(&self.layers) {
            return error("num_res_blocks", self.layers.to_string(), limits::expected(&(1..=MAX_LAYERS)));
        }
        if !(1..=MAX_DOWNSCALE).contains(&self.downscale) {
            return error("downscale_factor", self.downscale.to_string(), limits::expected(&(1..=MAX_DOWNSCALE)));
        }
        if ![1, 3].contains(&self.second_kernel) {
            return error("the kernel of block2", self.second_kernel.to_string(), "1 or 3".into());
        }
        Ok(())
    }

    /// Whether the level's maps have half the size of those before.
    pub(super) fn halves(&self, level: usize) -> bool {
        match self.form {
            AdapterForm::Full | AdapterForm::Light => level > 0,
            AdapterForm::FullXl => level == 2,
        }
    }

    /// Each feature map's channels, and how often its size is half of that of the adapter's first map.
    pub fn features(&self) -> Vec<(usize, usize)> {
        let mut halvings = 0;
        let of = |(level, &channels): (usize, &usize)| {
            halvings += usize::from(self.halves(level));
            (channels, halvings)
        };
        self.channels.iter().enumerate().map(of).collect()
    }

    /// Whether the feature maps are those that `unet` adds to its down blocks, for latents that cover `f` by `f` pixels.
    pub fn fits(&self, unet: &UnetConfig, f: usize) -> bool {
        let places = places(unet);
        let first = places.first().map_or(0, |&(_, halvings)| halvings);
        let own = self.features();
        self.downscale == f << first
            && own.len() >= places.len()
            && places.iter().zip(&own).all(|(place, own)| *place == (own.0, own.1 + first))
    }
}

/// Where a U-Net adds an adapter's features: of each down block the channels, and how often the size of its map is half of
/// the latents' ([`crate::Conditioning::features`]).
pub(crate) fn places(unet: &UnetConfig) -> Vec<(usize, usize)> {
    let last = unet.down.len().saturating_sub(1);
    let of = |(i, block): (usize, &crate::config::BlockConfig)| {
        let after = block.transformer.is_none() && i < last;
        (block.channels, i + usize::from(after))
    };
    unet.down.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        AdapterConfig::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_diffusers() {
        let config = AdapterConfig::from_json("{}").unwrap();
        assert_eq!(config.features(), [(320, 0), (640, 1), (1280, 2), (1280, 3)]);
        assert!(config.fits(&UnetConfig::from_json("{}").unwrap(), 8));
        let xl = AdapterConfig::from_json(r#"{"adapter_type": "full_adapter_xl", "downscale_factor": 16}"#).unwrap();
        assert_eq!(xl.features(), [(320, 0), (640, 0), (1280, 1), (1280, 1)]);
        assert!(!xl.fits(&UnetConfig::from_json("{}").unwrap(), 8));
        let light = r#"{"adapter_type": "light_adapter", "channels": [320, 640, 1280], "num_res_blocks": 4}"#;
        assert_eq!(AdapterConfig::from_json(light).unwrap().features(), config.features());
    }

    #[test]
    fn what_no_adapter_has_is_refused() {
        for (json, part) in [
            (r#"{"adapter_type": "style"}"#, "`adapter_type` is style"),
            (r#"{"in_channels": 2}"#, "`in_channels` is 2, expected 1 or 3"),
            (r#"{"channels": []}"#, "`channels` is a list of 0"),
            (r#"{"channels": [320, 0]}"#, "`channels` is 0"),
            (r#"{"num_res_blocks": 0}"#, "`num_res_blocks` is 0"),
            (r#"{"downscale_factor": 1000}"#, "`downscale_factor` is 1000"),
            ("[]", "cannot be read"),
        ] {
            assert!(message(json).contains(part), "{json}: {}", message(json));
        }
    }
}
