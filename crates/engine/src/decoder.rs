//! From latents to a picture: the model's own autoencoder, or a tiny one in its place.

use std::path::Path;

use candle_core::{DType, Tensor};
use kiln_vae::{TinyConfig, TinyDecoder, VaeConfig};
use kiln_weights::{KeyRule, ParamSource, Placement, Renamed, SafetensorsFile, load, open_component};

use crate::error::{Error, Result};
use crate::model_folder::ModelFolder;

/// The decoder of a loaded model.
pub(crate) enum Decoder {
    /// The model folder's `AutoencoderKL`.
    Kl(VaeConfig, Box<kiln_vae::Decoder>),
    /// A TAESD.
    Tiny(TinyConfig, TinyDecoder),
}

impl Decoder {
    /// Loads `taesd` if it is given, a file or a folder, else the model's own decoder: never both.
    pub(crate) fn load(model: &ModelFolder, taesd: Option<&Path>, placement: &Placement) -> Result<Self> {
        if let Some(path) = taesd {
            return load_tiny(model, path, placement);
        }
        let config = model.vae_config().clone();
        let decoder = kiln_vae::Decoder::new(&config);
        let source = Renamed::new(open_component(&model.path().join("vae"))?, KeyRule::VAE_ATTENTION);
        load(decoder.segments(), &source, placement)?;
        Ok(Self::Kl(config, Box::new(decoder)))
    }

    /// Latents as the denoiser gives them, `(n, c, h, w)` in f32, to images `(n, 3, f h, f w)` of about -1 to 1 in f32.
    /// The network runs in `dtype`.
    pub(crate) fn decode(&self, latents: &Tensor, dtype: DType) -> Result<Tensor> {
        let image = match self {
            Self::Kl(config, decoder) => decoder.decode(&config.unscale(latents)?.to_dtype(dtype)?)?,
            Self::Tiny(config, decoder) => decoder.decode(&config.unscale(latents)?.to_dtype(dtype)?)?,
        };
        Ok(image.to_dtype(DType::F32)?)
    }
}

/// A file has weights alone, and is TAESD; a folder is in the diffusers layout, with its configuration.
fn load_tiny(model: &ModelFolder, path: &Path, placement: &Placement) -> Result<Decoder> {
    let (config, source): (_, Box<dyn ParamSource>) = if path.is_dir() {
        let file = path.join("config.json");
        let text = std::fs::read_to_string(&file).map_err(Error::read(&file))?;
        let config = TinyConfig::from_json(&text).map_err(|error| Error::model(&file, error))?;
        (config, open_component(path)?)
    } else {
        (TinyConfig::default(), Box::new(SafetensorsFile::open(path)?))
    };
    let found = (config.latent_channels, config.upscale(), config.out_channels);
    let vae = model.vae_config();
    let expected = (vae.latent_channels, vae.downscale(), vae.out_channels);
    if found != expected {
        let problem = format!(
            "decodes latents of {} channels, each to {f}x{f} pixels of {}, but the model's have {} channels and stand \
             for {g}x{g} pixels of {}; take a TAESD that was made for this model",
            found.0,
            found.2,
            expected.0,
            expected.2,
            f = found.1,
            g = expected.1,
        );
        return Err(Error::model(path, problem));
    }
    let decoder = TinyDecoder::new(&config);
    load(decoder.segments(), &Renamed::new(source, KeyRule::TAESD), placement).map_err(|error| match error {
        kiln_weights::Error::Missing { key, .. } => {
            let problem = format!(
                "is no TAESD that decodes, tensor `{key}` is missing; take a file of an AutoencoderTiny, or taesd_decoder"
            );
            Error::model(path, problem)
        }
        other => other.into(),
    })?;
    Ok(Decoder::Tiny(config, decoder))
}
