//! IP-Adapters and an image encoder for tests: all their weights follow from their names. `tests/reference/ip_adapter.py` makes the
//! same ones, so that no file of them is stored.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::json;

use crate::control::{values, write_tensors};
use crate::fixture::Fixture;

/// Channels of the image encoder's tokens, and of its embedding.
const HIDDEN: usize = 16;
const EMBEDDING: usize = 12;
/// Channels of the resampler's queries, their number, and the channels of its head.
const RESAMPLER: usize = 16;
const QUERIES: usize = 3;
const HEAD: usize = 64;
/// Layers of the resampler.
const DEPTH: usize = 4;
/// Channels of an identity's vector.
const IDENTITY: usize = 9;

/// The small image encoder.
pub struct TinyVision;

/// How an adapter makes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptForm {
    /// Four tokens of the embedding.
    Plain,
    /// Learned queries.
    Plus,
    /// Each token of the encoder.
    Full,
    /// Four tokens of a vector, with a LoRA.
    Face,
}

/// An IP-Adapter for one of the tiny models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyIpAdapter {
    /// Adapters of different numbers have different weights.
    pub number: u32,
    /// How it makes tokens.
    pub form: PromptForm,
}

impl TinyVision {
    /// The configuration, as transformers writes it.
    pub fn config() -> String {
        json!({
            "architectures": ["CLIPVisionModelWithProjection"], "model_type": "clip_vision_model", "hidden_size": HIDDEN,
            "intermediate_size": 32, "projection_dim": EMBEDDING, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 24, "patch_size": 8, "hidden_act": "gelu",
        })
        .to_string()
    }

    /// The tensors, by their names in transformers.
    pub fn tensors() -> BTreeMap<String, Tensor> {
        let mut shapes: Vec<(String, Vec<usize>)> = vec![
            ("vision_model.embeddings.class_embedding".into(), vec![HIDDEN]),
            ("vision_model.embeddings.patch_embedding.weight".into(), vec![HIDDEN, 3, 8, 8]),
            ("vision_model.embeddings.position_embedding.weight".into(), vec![10, HIDDEN]),
            ("visual_projection.weight".into(), vec![EMBEDDING, HIDDEN]),
        ];
        let mut pair = |name: String, out: usize, shape: Vec<usize>| {
            shapes.push((format!("{name}.weight"), shape));
            shapes.push((format!("{name}.bias"), vec![out]));
        };
        for norm in ["pre_layrnorm", "post_layernorm"] {
            pair(format!("vision_model.{norm}"), HIDDEN, vec![HIDDEN]);
        }
        for i in 0..3 {
            let layer = format!("vision_model.encoder.layers.{i}");
            for norm in ["layer_norm1", "layer_norm2"] {
                pair(format!("{layer}.{norm}"), HIDDEN, vec![HIDDEN]);
            }
            for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                pair(format!("{layer}.self_attn.{projection}"), HIDDEN, vec![HIDDEN, HIDDEN]);
            }
            pair(format!("{layer}.mlp.fc1"), 32, vec![32, HIDDEN]);
            pair(format!("{layer}.mlp.fc2"), HIDDEN, vec![HIDDEN, 32]);
        }
        shapes.into_iter().map(|(key, shape)| (key.clone(), tensor(&format!("vision/{key}"), &shape, 1.0))).collect()
    }

    /// Writes a folder in the layout of transformers.
    #[track_caller]
    pub fn write(folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(folder.join("config.json"), Self::config()).expect("a configuration");
        write_tensors(&Self::tensors(), &folder.join("model.safetensors"));
    }
}

impl PromptForm {
    /// The form of this name in `ip_adapter.json`.
    #[track_caller]
    pub fn named(name: &str) -> Self {
        match name {
            "plain" => Self::Plain,
            "plus" => Self::Plus,
            "full" => Self::Full,
            "face" => Self::Face,
            other => panic!("no form of an IP-Adapter: {other}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Plus => "plus",
            Self::Full => "full",
            Self::Face => "face",
        }
    }

    /// Names and shapes of what makes tokens of `dim` channels.
    fn projection(self, dim: usize) -> Vec<(String, Vec<usize>)> {
        let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: &str, shape: &[usize]| shapes.push((name.to_string(), shape.to_vec()));
        let width = RESAMPLER;
        match self {
            Self::Plain => {
                add("proj.weight", &[4 * dim, EMBEDDING]);
                add("proj.bias", &[4 * dim]);
                add("norm.weight", &[dim]);
                add("norm.bias", &[dim]);
            }
            Self::Full => {
                add("proj.0.weight", &[HIDDEN, HIDDEN]);
                add("proj.0.bias", &[HIDDEN]);
                add("proj.2.weight", &[dim, HIDDEN]);
                add("proj.2.bias", &[dim]);
                add("proj.3.weight", &[dim]);
                add("proj.3.bias", &[dim]);
            }
            Self::Face => {
                add("proj.0.weight", &[2 * IDENTITY, IDENTITY]);
                add("proj.0.bias", &[2 * IDENTITY]);
                add("proj.2.weight", &[4 * dim, 2 * IDENTITY]);
                add("proj.2.bias", &[4 * dim]);
                add("norm.weight", &[dim]);
                add("norm.bias", &[dim]);
            }
            Self::Plus => {
                add("latents", &[1, QUERIES, width]);
                add("proj_in.weight", &[width, HIDDEN]);
                add("proj_in.bias", &[width]);
                for i in 0..DEPTH {
                    for norm in ["0.norm1", "0.norm2", "1.0"] {
                        add(&format!("layers.{i}.{norm}.weight"), &[width]);
                        add(&format!("layers.{i}.{norm}.bias"), &[width]);
                    }
                    add(&format!("layers.{i}.0.to_q.weight"), &[HEAD, width]);
                    add(&format!("layers.{i}.0.to_kv.weight"), &[2 * HEAD, width]);
                    add(&format!("layers.{i}.0.to_out.weight"), &[width, HEAD]);
                    add(&format!("layers.{i}.1.1.weight"), &[4 * width, width]);
                    add(&format!("layers.{i}.1.3.weight"), &[width, 4 * width]);
                }
                add("proj_out.weight", &[dim, width]);
                add("proj_out.bias", &[dim]);
                add("norm_out.weight", &[dim]);
                add("norm_out.bias", &[dim]);
            }
        }
        shapes
    }
}

impl TinyIpAdapter {
    /// The tensors for the model `kind` (`sd1`, `sdxl`), by their names in IP-Adapters' files.
    #[track_caller]
    pub fn tensors(self, kind: &str) -> BTreeMap<String, Tensor> {
        let unet = Fixture::open(&format!("models/{kind}/unet/diffusion_pytorch_model.safetensors"));
        let shape = |key: &str| unet.tensor(key).dims().to_vec();
        let mut blocks: Vec<String> = unet
            .keys()
            .into_iter()
            .filter_map(|key| Some(key.strip_suffix(".attn2.to_k.weight")?.to_string()))
            .collect();
        // Down, up, middle, as diffusers' `attn_processors`; single digits sort as text.
        let part = |block: &str| ["down", "up", "mid"].iter().position(|part| block.starts_with(part));
        blocks.sort_by_key(|block| (part(block), block.clone()));
        let dim = shape(&format!("{}.attn2.to_k.weight", blocks[0]))[1];
        let name = |key: &str| format!("{}/{}/{key}", self.number, self.form.name());
        let mut tensors = BTreeMap::new();
        let mut add = |key: String, shape: &[usize], factor: f64| {
            tensors.insert(key.clone(), tensor(&name(&key), shape, factor));
        };
        for (key, shape) in self.form.projection(dim) {
            add(format!("image_proj.{key}"), &shape, 1.0);
        }
        for (i, block) in blocks.iter().enumerate() {
            let channels = shape(&format!("{block}.attn2.to_q.weight"))[0];
            for part in ["to_k_ip", "to_v_ip"] {
                add(format!("ip_adapter.{}.{part}.weight", 2 * i + 1), &[channels, dim], 1.0);
            }
            for (number, layer) in [(2 * i, "attn1"), (2 * i + 1, "attn2")] {
                for part in ["to_q", "to_k", "to_v", "to_out"] {
                    if self.form != PromptForm::Face {
                        continue;
                    }
                    let weight = if part == "to_out" { "to_out.0" } else { part };
                    let weight = shape(&format!("{block}.{layer}.{weight}.weight"));
                    let key = format!("ip_adapter.{number}.{part}_lora");
                    add(format!("{key}.down.weight"), &[2, weight[1]], 0.25);
                    add(format!("{key}.up.weight"), &[weight[0], 2], 0.25);
                }
            }
        }
        tensors
    }

    /// Writes the adapter's file.
    #[track_caller]
    pub fn write(self, kind: &str, path: &Path) {
        write_tensors(&self.tensors(kind), path);
    }
}

/// A tensor of values that follow from the name.
fn tensor(key: &str, shape: &[usize], factor: f64) -> Tensor {
    let count = shape.iter().product();
    let numbers = if key.ends_with(".bias") {
        values(key, count, 0.2)
    } else if key.ends_with("latents") || (key.contains("embedding") && !key.contains("patch")) {
        values(key, count, 2.0)
    } else if shape.len() == 1 {
        values(key, count, 0.5).into_iter().map(|value| value + 1.0).collect()
    } else {
        values(key, count, 1.5 * (12.0 / (count / shape[0]) as f64).sqrt())
    };
    let numbers: Vec<f32> = numbers.into_iter().map(|value| value * factor as f32).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("as many values as the shape has")
}
