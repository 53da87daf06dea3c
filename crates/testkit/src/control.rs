//! Control networks for tests: their encoders are the tiny models' U-Nets with all weights times a factor, and all other
//! weights follow from their names. `tests/reference/control.py` makes the same networks in diffusers, so that no file of
//! them is stored.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::paths::fixtures;

/// Which of the networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyControl {
    /// Networks of different numbers have different weights.
    pub number: u32,
    /// Without transformers, and with one residual block in the middle, as diffusers' small ControlNets of SDXL.
    pub is_small: bool,
}

/// Channels between the control image and the first feature map.
const HINT_WIDTHS: [usize; 4] = [4, 6, 8, 8];

impl TinyControl {
    /// The network of this number, with transformers.
    pub fn full(number: u32) -> Self {
        Self { number, is_small: false }
    }

    /// The tensors for the model `kind` (`sd1`, `sd2v`, `sdxl`), by their names in diffusers.
    #[track_caller]
    pub fn tensors(self, kind: &str) -> BTreeMap<String, Tensor> {
        let unet = format!("models/{kind}/unet/diffusion_pytorch_model.safetensors");
        let unet = Fixture::open(&unet);
        let factor = 1.0 - 0.125 / f64::from(self.number + 1);
        let parts = ["conv_in.", "time_embedding.", "add_embedding.", "down_blocks.", "mid_block."];
        let is_left_out =
            |key: &str| self.is_small && (key.contains("attentions") || key.contains("mid_block.resnets.1"));
        let keys = unet.keys().into_iter().filter(|key| parts.iter().any(|part| key.starts_with(part)));
        let mut tensors: BTreeMap<String, Tensor> = keys
            .filter(|key| !is_left_out(key))
            .map(|key| {
                let tensor = unet.tensor(key).to_dtype(DType::F32).and_then(|tensor| tensor * factor);
                (key.to_string(), tensor.expect("a product of f32"))
            })
            .collect();
        let config = self.config(kind);
        let layers = config["layers_per_block"].as_u64().expect("a number of layers") as usize;
        let channels: Vec<usize> = config["block_out_channels"]
            .as_array()
            .expect("a list of channels")
            .iter()
            .filter_map(|channels| Some(channels.as_u64()? as usize))
            .collect();
        let hint = "controlnet_cond_embedding";
        self.conv(&mut tensors, &format!("{hint}.conv_in"), [HINT_WIDTHS[0], 3, 3], 1.5);
        for (i, pair) in HINT_WIDTHS.windows(2).enumerate() {
            self.conv(&mut tensors, &format!("{hint}.blocks.{}", 2 * i), [pair[0], pair[0], 3], 1.5);
            self.conv(&mut tensors, &format!("{hint}.blocks.{}", 2 * i + 1), [pair[1], pair[0], 3], 1.5);
        }
        self.conv(&mut tensors, &format!("{hint}.conv_out"), [channels[0], HINT_WIDTHS[3], 3], 1.5);
        // The first convolution, the layers of each level, and a downsampling after all but the last.
        let mut skips = vec![channels[0]];
        for (i, &c) in channels.iter().enumerate() {
            skips.extend(std::iter::repeat_n(c, layers + usize::from(i + 1 < channels.len())));
        }
        for (i, &c) in skips.iter().enumerate() {
            self.conv(&mut tensors, &format!("controlnet_down_blocks.{i}"), [c, c, 1], 0.5);
        }
        let last = channels[channels.len() - 1];
        self.conv(&mut tensors, "controlnet_mid_block", [last, last, 1], 0.5);
        tensors
    }

    /// The configuration, as diffusers writes it.
    #[track_caller]
    pub fn config(self, kind: &str) -> Value {
        let path = fixtures(&format!("models/{kind}/unet/config.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut config: Value = serde_json::from_str(&text).expect("a configuration in JSON");
        let levels = config["block_out_channels"].as_array().map_or(0, Vec::len);
        config["_class_name"] = json!("ControlNetModel");
        config["conditioning_embedding_out_channels"] = json!(HINT_WIDTHS);
        config["controlnet_conditioning_channel_order"] = json!("rgb");
        if self.is_small {
            config["down_block_types"] = json!(vec!["DownBlock2D"; levels]);
            config["mid_block_type"] = json!("UNetMidBlock2D");
        }
        for key in ["up_block_types", "out_channels", "sample_size", "center_input_sample"] {
            config.as_object_mut().expect("an object").remove(key);
        }
        config
    }

    /// Writes a folder in the diffusers layout.
    #[track_caller]
    pub fn write(self, kind: &str, folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(folder.join("config.json"), self.config(kind).to_string()).expect("a configuration");
        write_tensors(&self.tensors(kind), &folder.join("diffusion_pytorch_model.safetensors"));
    }

    /// A convolution's weight and bias, of values that follow from the name.
    fn conv(self, tensors: &mut BTreeMap<String, Tensor>, name: &str, [c_out, c_in, kernel]: [usize; 3], gain: f64) {
        let fan_in = (c_in * kernel * kernel) as f64;
        let mut add = |part: &str, shape: &[usize], size: f64| {
            let key = format!("{name}.{part}");
            let values = values(&format!("{}/{key}", self.number), shape.iter().product(), size);
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).expect("as many values as the shape has");
            tensors.insert(key, tensor);
        };
        add("weight", &[c_out, c_in, kernel, kernel], gain * (12.0 / fan_in).sqrt());
        add("bias", &[c_out], 0.2);
    }
}

/// Writes tensors as a safetensors file.
#[track_caller]
pub fn write_tensors(tensors: &BTreeMap<String, Tensor>, path: &Path) {
    let all = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    candle_core::safetensors::save(&all, path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// `count` numbers from `-size / 2` to `size / 2` that depend on `name` alone: a linear congruential generator that begins with
/// the name's FNV-1a hash.
pub(crate) fn values(name: &str, count: usize, size: f64) -> Vec<f32> {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mut state = hash;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((f64::from(state) / 4_294_967_296.0 - 0.5) * size) as f32
    };
    (0..count).map(|_| next()).collect()
}

/// Red, green and blue of a control image of this size, row by row: the same in `tests/reference/control.py`.
pub fn control_pixels(width: usize, height: usize) -> Vec<u8> {
    let pixel = |x: usize, y: usize| {
        let checks = if (x / 8 + y / 8).is_multiple_of(2) { 40 } else { 255 };
        [(7 * x + 3 * y) % 256, (x * y) % 256, checks].map(|value| value as u8)
    };
    (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect()
}
