//! T2I-Adapters and Union networks for tests: `tests/reference/adapters.py` makes the same networks in diffusers, so that no
//! file of them is stored.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::control::{TinyControl, values, write_tensors};

/// A T2I-Adapter whose weights follow from their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyAdapter {
    /// `full`, `gray`, `light` or `full_xl`.
    pub form: &'static str,
    /// Adapters of different numbers have different weights.
    pub number: u32,
    /// Channels of the levels of the U-Net that it is for.
    pub channels: &'static [usize],
}

/// Channels of the levels of the tiny models.
const CHANNELS: [usize; 4] = [8, 12, 20, 20];
/// Residual blocks of a level.
const LAYERS: usize = 2;

impl TinyAdapter {
    /// The adapter of a form, for the tiny models.
    pub fn new(form: &'static str, number: u32) -> Self {
        Self { form, number, channels: &CHANNELS }
    }

    /// The configuration, as diffusers writes it.
    pub fn config(self) -> Value {
        let kind = match self.form {
            "light" => "light_adapter",
            "full_xl" => "full_adapter_xl",
            _ => "full_adapter",
        };
        let channels = if self.form == "light" { &self.channels[..3] } else { self.channels };
        json!({
            "_class_name": "T2IAdapter",
            "adapter_type": kind,
            "channels": channels,
            "downscale_factor": self.downscale(),
            "in_channels": self.image_channels(),
            "num_res_blocks": LAYERS,
        })
    }

    fn downscale(self) -> usize {
        if self.form == "full_xl" { 16 } else { 8 }
    }

    fn image_channels(self) -> usize {
        if self.form == "gray" { 1 } else { 3 }
    }

    /// The tensors by their names in diffusers.
    #[track_caller]
    pub fn tensors(self) -> BTreeMap<String, Tensor> {
        let mut tensors = BTreeMap::new();
        let mut conv = |name: String, [c_out, c_in, kernel]: [usize; 3]| {
            let name = format!("adapter.{name}");
            for (part, shape) in [("weight", vec![c_out, c_in, kernel, kernel]), ("bias", vec![c_out])] {
                let key = format!("{name}.{part}");
                let tensor = by_name(self.number, &key, &shape);
                tensors.insert(key, tensor);
            }
        };
        let depth = self.image_channels() * self.downscale() * self.downscale();
        let is_light = self.form == "light";
        if !is_light {
            conv("conv_in".into(), [self.channels[0], depth, 3]);
        }
        let mut last = if is_light { depth } else { self.channels[0] };
        for (level, channels) in self.channels.iter().copied().enumerate() {
            let within = if is_light { channels / 4 } else { channels };
            if is_light {
                conv(format!("body.{level}.out_conv"), [channels, within, 1]);
            }
            if is_light || channels != last {
                conv(format!("body.{level}.in_conv"), [within, last, 1]);
            }
            for layer in 0..LAYERS {
                let block = format!("body.{level}.resnets.{layer}");
                conv(format!("{block}.block1"), [within, within, 3]);
                conv(format!("{block}.block2"), [within, within, if is_light { 3 } else { 1 }]);
            }
            last = channels;
        }
        tensors
    }

    /// The tensors by their names in its authors' files.
    #[track_caller]
    pub fn original(self) -> BTreeMap<String, Tensor> {
        let renamed = |(key, tensor): (String, Tensor)| {
            let key = key.trim_start_matches("adapter.").to_string();
            let parts: Vec<&str> = key.split('.').collect();
            let number = |text: &str| text.parse::<usize>().expect("a number");
            let name = match &parts[..] {
                ["body", level, "resnets", layer, rest @ ..] if self.form == "light" => {
                    format!("body.{level}.body.{layer}.{}", rest.join("."))
                }
                ["body", level, "resnets", layer, rest @ ..] => {
                    format!("body.{}.{}", LAYERS * number(level) + number(layer), rest.join("."))
                }
                ["body", level, rest @ ..] if self.form != "light" => {
                    format!("body.{}.{}", LAYERS * number(level), rest.join("."))
                }
                _ => key,
            };
            (name, tensor)
        };
        self.tensors().into_iter().map(renamed).collect()
    }

    /// Writes a folder in the diffusers layout.
    #[track_caller]
    pub fn write(self, folder: &Path) {
        write_folder(&self.config(), &self.tensors(), folder);
    }
}

/// A ControlNet-LLLite for the tiny model of Stable Diffusion XL, whose weights follow from their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyLllite {
    /// Networks of different numbers have different weights.
    pub number: u32,
}

/// The modules of [`TinyLllite`]: their names, their layers' channels, and the kernels of their embeddings.
const MODULES: [(&str, usize, &[usize]); 7] = [
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_q", 12, &[4, 4]),
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_k", 12, &[4, 4]),
    ("input_blocks_3_1_transformer_blocks_0_attn1_to_v", 12, &[4, 4]),
    ("input_blocks_3_1_transformer_blocks_0_attn2_to_q", 12, &[4, 4]),
    ("input_blocks_3_1_transformer_blocks_1_attn1_to_q", 12, &[4, 4]),
    ("middle_block_1_transformer_blocks_0_attn1_to_v", 20, &[4, 4, 2]),
    ("output_blocks_2_1_transformer_blocks_0_attn2_to_q", 12, &[4, 4]),
];
/// Channels of their embeddings, within and at the end, and of their hidden tokens.
const WITHIN: usize = 3;
const EMBEDDED: usize = 6;
const HIDDEN: usize = 5;

impl TinyLllite {
    /// The tensors, by the names of kohya-ss' scripts.
    #[track_caller]
    pub fn tensors(self) -> BTreeMap<String, Tensor> {
        let mut tensors = BTreeMap::new();
        for (name, channels, kernels) in MODULES {
            let mut add = |part: &str, shape: &[usize]| {
                for (end, shape) in [("weight", shape), ("bias", &shape[..1])] {
                    let key = format!("lllite_unet_{name}.{part}.{end}");
                    let tensor = by_name(self.number, &key, shape);
                    tensors.insert(key, tensor);
                }
            };
            let mut last = 3;
            for (i, &kernel) in kernels.iter().enumerate() {
                let width = if i + 1 < kernels.len() { WITHIN } else { EMBEDDED };
                add(&format!("conditioning1.{}", 2 * i), &[width, last, kernel, kernel]);
                last = width;
            }
            add("down.0", &[HIDDEN, channels]);
            add("mid.0", &[HIDDEN, HIDDEN + EMBEDDED]);
            add("up.0", &[channels, HIDDEN]);
        }
        tensors
    }

    /// Writes a file.
    #[track_caller]
    pub fn write(self, path: &Path) {
        write_tensors(&self.tensors(), path);
    }
}

/// A Union network for eight types, whose encoder and embedding of images are those of a [`TinyControl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyUnion;

/// Its types, and the channels of its transformer.
const TYPES: usize = 8;
const WIDTH: usize = 8;

impl TinyUnion {
    /// The configuration for the model `kind`, as diffusers writes it.
    #[track_caller]
    pub fn config(self, kind: &str) -> Value {
        let mut config = TinyControl::full(0).config(kind);
        config["_class_name"] = json!("ControlNetUnionModel");
        config["num_control_type"] = json!(TYPES);
        config["num_trans_channel"] = json!(WIDTH);
        config["num_proj_channel"] = json!(WIDTH);
        config["num_trans_head"] = json!(8);
        config["num_trans_layer"] = json!(1);
        config
    }

    /// The tensors for the model `kind`, by their names in diffusers.
    #[track_caller]
    pub fn tensors(self, kind: &str) -> BTreeMap<String, Tensor> {
        let config = self.config(kind);
        let flag = config["addition_time_embed_dim"].as_u64().expect("a width") as usize;
        let temb = 4 * config["block_out_channels"][0].as_u64().expect("channels") as usize;
        let layer = "transformer_layes.0";
        let own = [
            ("task_embedding".to_string(), vec![TYPES, WIDTH]),
            (format!("{layer}.attn.in_proj_weight"), vec![3 * WIDTH, WIDTH]),
            (format!("{layer}.attn.in_proj_bias"), vec![3 * WIDTH]),
            (format!("{layer}.attn.out_proj.weight"), vec![WIDTH, WIDTH]),
            (format!("{layer}.attn.out_proj.bias"), vec![WIDTH]),
            (format!("{layer}.ln_1.weight"), vec![WIDTH]),
            (format!("{layer}.ln_1.bias"), vec![WIDTH]),
            (format!("{layer}.ln_2.weight"), vec![WIDTH]),
            (format!("{layer}.ln_2.bias"), vec![WIDTH]),
            (format!("{layer}.mlp.c_fc.weight"), vec![4 * WIDTH, WIDTH]),
            (format!("{layer}.mlp.c_fc.bias"), vec![4 * WIDTH]),
            (format!("{layer}.mlp.c_proj.weight"), vec![WIDTH, 4 * WIDTH]),
            (format!("{layer}.mlp.c_proj.bias"), vec![WIDTH]),
            ("spatial_ch_projs.weight".to_string(), vec![WIDTH, WIDTH]),
            ("spatial_ch_projs.bias".to_string(), vec![WIDTH]),
            ("control_add_embedding.linear_1.weight".to_string(), vec![temb, TYPES * flag]),
            ("control_add_embedding.linear_1.bias".to_string(), vec![temb]),
            ("control_add_embedding.linear_2.weight".to_string(), vec![temb, temb]),
            ("control_add_embedding.linear_2.bias".to_string(), vec![temb]),
        ];
        let mut tensors = TinyControl::full(0).tensors(kind);
        tensors.extend(own.into_iter().map(|(key, shape)| {
            let tensor = by_name(0, &key, &shape);
            (key, tensor)
        }));
        tensors
    }

    /// Writes a folder in the diffusers layout.
    #[track_caller]
    pub fn write(self, kind: &str, folder: &Path) {
        write_folder(&self.config(kind), &self.tensors(kind), folder);
    }
}

/// Values that follow from a name: biases around 0, norms around 1, and matrices that keep their input's variance.
#[track_caller]
fn by_name(number: u32, key: &str, shape: &[usize]) -> Tensor {
    let (name, count) = (format!("{number}/{key}"), shape.iter().product());
    let data = match shape {
        _ if key.ends_with("bias") => values(&name, count, 0.2),
        [_] => values(&name, count, 0.5).into_iter().map(|value| 1.0 + value).collect(),
        [_, rest @ ..] => values(&name, count, (12.0 / rest.iter().product::<usize>() as f64).sqrt()),
        [] => Vec::new(),
    };
    Tensor::from_vec(data, shape, &Device::Cpu).expect("as many values as the shape has")
}

#[track_caller]
fn write_folder(config: &Value, tensors: &BTreeMap<String, Tensor>, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a configuration");
    write_tensors(tensors, &folder.join("diffusion_pytorch_model.safetensors"));
}
