//! Files of ControlNets: the names and types that they come in, and those that are refused.

mod known;
mod refused;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use kiln_models::ModelFolder;
use kiln_testkit::{TinyControl, fixtures};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{UnetLevel, UnetShape};

type Tensors = BTreeMap<String, Tensor>;

fn model(kind: &str) -> ModelFolder {
    ModelFolder::open(&fixtures(&format!("models/{kind}"))).unwrap()
}

fn tensors(kind: &str) -> Tensors {
    TinyControl::full(0).tensors(kind)
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

/// The tensors of `kind` under the names of ControlNet's authors.
fn original(kind: &str) -> Tensors {
    let depths: &[usize] = if kind == "sdxl" { &[0, 2, 2] } else { &[1, 1, 1, 0] };
    let shape = UnetShape {
        in_channels: 4,
        out_channels: 4,
        down: depths.iter().map(|&depth| UnetLevel { channels: 8, depths: vec![depth] }).collect(),
        middle: Some(1),
        up: Vec::new(),
        context_dim: 32,
        linear_projection: false,
        added_dim: None,
        guidance_dim: None,
    };
    let names = shape.control_names();
    let stored = |(key, tensor): (String, Tensor)| (names.place(&key).unwrap().name, tensor);
    tensors(kind).into_iter().map(stored).collect()
}

fn values(source: &dyn ParamSource, key: &str) -> Vec<f32> {
    source.data(key).unwrap().unwrap().to_f32().unwrap()
}

/// A control LoRA: the tensors that a U-Net does not have, and factors of two that it has.
fn control_lora(kind: &str) -> Tensors {
    let mut lora: Tensors = original(kind)
        .into_iter()
        .filter(|(name, _)| {
            ["input_hint_block", "zero_convs", "middle_block_out"].iter().any(|part| name.starts_with(part))
        })
        .collect();
    lora.insert("lora_controlnet".into(), zeros(&[0]));
    let factor = |seed: usize, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed) % 11) as f32 * 0.01 - 0.05).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    lora.insert("input_blocks.1.0.in_layers.2.up".into(), factor(1, &[8, 2, 1, 1]));
    lora.insert("input_blocks.1.0.in_layers.2.down".into(), factor(2, &[2, 8, 3, 3]));
    lora.insert("time_embed.0.up".into(), factor(3, &[32, 2]));
    lora.insert("time_embed.0.down".into(), factor(4, &[2, 8]));
    lora.insert("time_embed.2.bias".into(), factor(5, &[32]));
    lora
}
