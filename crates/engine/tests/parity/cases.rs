//! The cases of the fixtures and their requests.

use std::path::PathBuf;

use candle_core::Tensor;
use kiln_engine::{Request, SamplerKind, SigmaSchedule};
use kiln_testkit::{fixtures, repository};
use serde::Deserialize;

/// The tiny models, and the trained one that comes with Kiln.
pub const MODELS: [&str; 4] = ["sd1", "sd2v", "sdxl", EMOJI];
/// The tiny models.
pub const TINY: [&str; 3] = ["sd1", "sd2v", "sdxl"];
/// The trained model.
pub const EMOJI: &str = "emoji";

/// A case of `pipeline_{kind}.json` or of `emoji.json`.
#[derive(Deserialize, Clone, Debug, PartialEq)]
pub struct Case {
    pub name: String,
    pub prompt: String,
    pub negative_prompt: Option<String>,
    pub seed: u64,
    pub steps: usize,
    pub cfg_scale: f64,
    pub width: usize,
    pub height: usize,
    #[serde(default = "one")]
    pub images: usize,
    pub sampler: Option<SamplerKind>,
    pub schedule: SigmaSchedule,
    /// The means of the channels over the middle half of the image, 0 to 1.
    pub middle_rgb: Option<[f64; 3]>,
}

fn one() -> usize {
    1
}

impl Case {
    /// The cases of a model.
    pub fn all(model: &str) -> Vec<Self> {
        let name = if model == EMOJI { "emoji.json".to_string() } else { format!("pipeline_{model}.json") };
        let text = std::fs::read_to_string(fixtures(&name)).unwrap();
        let cases: Vec<Self> = serde_json::from_str(&text).unwrap();
        assert!(cases.len() > 3, "{name} has {} cases", cases.len());
        cases
    }

    /// The request with these settings.
    pub fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            cfg_scale: Some(self.cfg_scale),
            seed: Some(self.seed),
            sampler: self.sampler.map(Into::into),
            scheduler: self.schedule,
            batch_size: Some(self.images),
            comma_backtrack: Some(0), // the reference splits a long prompt at full chunks
            ..Request::default()
        }
    }
}

/// The folder of a model.
pub fn folder(model: &str) -> PathBuf {
    if model == EMOJI { repository().join("models/emoji") } else { fixtures(&format!("models/{model}")) }
}

/// The file of a model's final latents.
pub fn final_latents(model: &str) -> String {
    if model == EMOJI { "emoji.safetensors".into() } else { format!("pipeline_{model}.safetensors") }
}

/// An image of the fixtures, `(n, 3, h, w)` from 0 to 1, as pixels of 0 to 255, image after image.
pub fn bytes(image: &Tensor) -> Vec<u8> {
    let rows = image.permute((0, 2, 3, 1)).and_then(|image| image.flatten_all()); // n, h, w, 3
    let values: Vec<f32> = rows.and_then(|values| values.to_vec1()).unwrap();
    values.into_iter().map(|value| (value * 255.0).round() as u8).collect()
}
