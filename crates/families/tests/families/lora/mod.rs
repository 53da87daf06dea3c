//! LoRAs of diffusion transformers and of T5, in the names of all programs.

mod data;
mod forms;
mod names;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_weights::{Lora, MapSource, Network, Packing, ParamSource, Patched, Segments, Targets};

pub(crate) type Shapes = Vec<(String, Vec<usize>)>;

/// A network that declares these parameters.
pub(crate) fn targets(network: Network, shapes: &Shapes) -> Targets {
    let mut segments = Segments::default();
    segments.add("all", |p| {
        for (key, shape) in shapes {
            let Some((path, name)) = key.rsplit_once('.') else { continue };
            let packing = if shape.len() == 2 { Packing::Linear } else { Packing::AsStored };
            p.pp(path).param(name, shape, packing);
        }
    });
    Targets::new(&[(network, &segments)])
}

pub(crate) fn shapes(source: &dyn ParamSource) -> Shapes {
    let mut keys = source.keys();
    keys.sort();
    keys.into_iter().map(|key| (key.clone(), source.info(&key).unwrap().shape)).collect()
}

pub(crate) fn values(source: &dyn ParamSource, key: &str) -> Vec<f32> {
    source.data(key).unwrap().unwrap_or_else(|| panic!("{key} is missing")).to_f32().unwrap()
}

pub(crate) fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11 + i * i % 7) % 23) as f32 / 23.0 - 0.5).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// The width of tiny networks.
pub(crate) const D: usize = 4;

/// Some layers of FLUX.1 with two blocks of each kind.
pub(crate) fn flux() -> Shapes {
    let mut shapes =
        vec![("x_embedder.weight".to_string(), vec![D, 8]), ("norm_out.linear.weight".into(), vec![2 * D, D])];
    for i in 0..2 {
        for name in ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] {
            shapes.push((format!("transformer_blocks.{i}.attn.{name}.weight"), vec![D, D]));
            shapes.push((format!("transformer_blocks.{i}.attn.{name}.bias"), vec![D]));
        }
        for name in ["attn.to_q", "attn.to_k", "attn.to_v"] {
            shapes.push((format!("single_transformer_blocks.{i}.{name}.weight"), vec![D, D]));
            shapes.push((format!("single_transformer_blocks.{i}.{name}.bias"), vec![D]));
        }
        shapes.push((format!("single_transformer_blocks.{i}.proj_mlp.weight"), vec![4 * D, D]));
        shapes.push((format!("single_transformer_blocks.{i}.proj_mlp.bias"), vec![4 * D]));
        shapes.push((format!("single_transformer_blocks.{i}.proj_out.weight"), vec![D, 5 * D]));
    }
    shapes
}

pub(crate) fn sd3() -> Shapes {
    let mut shapes = vec![("norm_out.linear.weight".to_string(), vec![2 * D, D])];
    for i in 0..2 {
        for name in ["to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"] {
            shapes.push((format!("transformer_blocks.{i}.attn.{name}.weight"), vec![D, D]));
        }
        let rows = if i == 1 { 2 * D } else { 6 * D };
        shapes.push((format!("transformer_blocks.{i}.norm1_context.linear.weight"), vec![rows, D]));
        let second = ["to_q", "to_k", "to_v"].map(|name| format!("transformer_blocks.{i}.attn2.{name}.weight"));
        shapes.extend(second.map(|name| (name, vec![D, D])));
    }
    shapes
}

pub(crate) fn read(targets: &Targets, tensors: Vec<(String, Tensor)>) -> kiln_weights::Result<Lora> {
    Lora::read(Arc::new(MapSource::from_iter(tensors)), &BTreeMap::new(), None, targets)
}

/// All parameters after the merge of a file, by name.
pub(crate) fn merged(network: Network, shapes: &Shapes, tensors: Vec<(String, Tensor)>) -> HashMap<String, Vec<f32>> {
    let lora = read(&targets(network, shapes), tensors).unwrap_or_else(|error| panic!("{error}"));
    assert!(lora.unused().is_empty(), "{:?}", lora.unused());
    let base = MapSource::from_iter(shapes.iter().enumerate().map(|(i, (key, shape))| (key.clone(), tensor(shape, i))));
    let patched = Patched::new(base);
    patched.set(lora.patches().iter().map(|patch| (patch.clone(), 0.5)));
    shapes.iter().map(|(key, _)| (key.clone(), values(&patched, key))).collect()
}

pub(crate) fn same(a: &HashMap<String, Vec<f32>>, b: &HashMap<String, Vec<f32>>, what: &str) {
    for (key, a) in a {
        let far = a.iter().zip(&b[key]).fold(0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far < 1e-6, "{what}: {key} is {far} away");
    }
}

/// `up` and `down` of a layer under the endings of PEFT (`A`, `B`) or of kohya.
pub(crate) fn pair(module: &str, is_peft: bool, up: &Tensor, down: &Tensor) -> Vec<(String, Tensor)> {
    let [a, b] = if is_peft { ["lora_A", "lora_B"] } else { ["lora_down", "lora_up"] };
    vec![(format!("{module}.{a}.weight"), down.clone()), (format!("{module}.{b}.weight"), up.clone())]
}
