//! The CLIP score: how well an image fits its prompt.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_clip::{HiddenLayer, ImageFeatures, TextEncoder, TextEncoderConfig, Tokenizer, VisionConfig, VisionEncoder};
use kiln_media::{Rgb8Image, clip_pixels};
use kiln_weights::{MAX_CONFIG_BYTES, Placement, load, open_component, read_small_text};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The architecture of text encoders with a projection, as their own folders name it.
const WITH_PROJECTION: &str = "CLIPTextModelWithProjection";

/// A CLIP model with both encoders.
pub struct ClipScore {
    tokenizer: Tokenizer,
    text: TextEncoder,
    vision: VisionEncoder,
}

impl ClipScore {
    /// Opens a folder of transformers' `CLIPModel`: `config.json` with both configurations, the weights, and the tokenizer's files.
    ///
    /// # Errors
    /// [`Error::Files`] without a configuration, [`Error::Network`] for another model, [`Error::Clip`] and [`Error::Weights`] for what
    /// is damaged or missing.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        if !path.is_file() {
            let looked_for = "`clip`, the folder of a CLIP model with an image and a text encoder".into();
            return Err(kiln_files::Error::NotFound { path, looked_for }.into());
        }
        let text = read_small_text(&path, MAX_CONFIG_BYTES).map_err(kiln_files::read_error(&path))?;
        let refused = |problem: String| Error::Network { path: PathBuf::from(&path), problem };
        let config: Value = serde_json::from_str(&text).map_err(|error| refused(format!("is not valid: {error}")))?;
        let part = |key: &str| {
            let mut part = config.get(key).filter(|part| part.is_object()).cloned().ok_or_else(|| {
                refused(format!("has no object `{key}`, expected the configuration of transformers' CLIPModel"))
            })?;
            // The model's own value is that of both projections; its parts may have another one, which is not read.
            if let Some(channels) = config.get("projection_dim") {
                part["projection_dim"] = channels.clone();
            }
            Ok::<_, Error>(part)
        };
        let (mut text, vision) = (part("text_config")?, part("vision_config")?);
        text["architectures"] = json!([WITH_PROJECTION]);
        let text = TextEncoder::new(TextEncoderConfig::from_json(&text.to_string())?)?;
        let vision = VisionEncoder::new(VisionConfig::from_json(&vision.to_string())?)?;
        let tokenizer = Tokenizer::open(folder)?;
        let source = open_component(folder)?;
        let placement = Placement::new(Device::Cpu, DType::F32);
        load(text.segments(), &source, &placement)?;
        load(vision.segments(), &source, &placement)?;
        Ok(Self { tokenizer, text, vision })
    }

    /// 100 times the cosine of the image's and the prompt's embeddings, 0 if that is negative. Of a prompt the first tokens
    /// count, as many as the encoder has room for.
    ///
    /// # Errors
    /// [`Error::Clip`] and [`Error::NotANumber`].
    pub fn score(&self, image: &Rgb8Image, prompt: &str) -> Result<f64> {
        let size = self.vision.config().image_size;
        let pixels = Tensor::from_vec(clip_pixels(image, size)?, (1, 3, size, size), &Device::Cpu)?;
        let image = self.vision.forward(&pixels, ImageFeatures::Embedding)?;
        let first: Vec<Vec<u32>> = self.tokenizer.chunks(prompt)?.into_iter().take(1).collect();
        let text = self.text.encode(&first, HiddenLayer::LAST, &Device::Cpu)?.pooled;
        let [image, text] = [image, text].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
        let cosine = cosine(&image?, &text?);
        if cosine.is_finite() { Ok((100.0 * cosine).max(0.0)) } else { Err(Error::NotANumber("the CLIP score")) }
    }
}

/// The cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    product(a, b) / (product(a, a) * product(b, b)).sqrt()
}
