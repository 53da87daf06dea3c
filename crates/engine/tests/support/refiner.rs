//! Tiny models for runs with a refiner, made of those of the fixtures.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use kiln_testkit::fixtures;

/// Channels of the second text encoder of `sdxl`, all that the refiner reads.
const CONTEXT: usize = 32;
/// Width of the refiner's pooled text and five numbers.
const ADDED: usize = 28 + 5 * 8;

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn change_weights(folder: &Path, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
    let path = folder.join("unet/diffusion_pytorch_model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let half = (tensors["conv_out.weight"].clone() * 0.5).unwrap();
    tensors.insert("conv_out.weight".into(), half);
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, &path).unwrap();
}

/// The model `kind` with half of the weights of its last convolution, in `folder`.
pub fn halved(kind: &str, folder: &Path) -> PathBuf {
    let (from, to) = (fixtures(&format!("models/{kind}")), folder.join(format!("{kind}_half")));
    copy(&from, &to);
    for part in std::fs::read_dir(&from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        copy(&part.path(), &to.join(part.file_name()));
    }
    change_weights(&to, |_| ());
    to
}

/// A refiner of SDXL in `folder`: `refiner_unet` of `tests/reference/refiner.py`.
pub fn refiner(folder: &Path) -> PathBuf {
    let (from, to) = (fixtures("models/sdxl"), folder.join("refiner"));
    copy(&fixtures("refiner"), &to);
    for part in ["text_encoder_2", "tokenizer_2", "scheduler", "vae", "unet"] {
        copy(&from.join(part), &to.join(part));
    }
    let config = to.join("unet/config.json");
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    json["cross_attention_dim"] = CONTEXT.into();
    json["projection_class_embeddings_input_dim"] = ADDED.into();
    std::fs::write(&config, json.to_string()).unwrap();
    change_weights(&to, |tensors| {
        for (name, tensor) in tensors.iter_mut() {
            let columns = tensor.dims().get(1).copied().unwrap_or_default();
            if name.ends_with("attn2.to_k.weight") || name.ends_with("attn2.to_v.weight") {
                *tensor = tensor.narrow(1, columns - CONTEXT, CONTEXT).unwrap().contiguous().unwrap();
            } else if name == "add_embedding.linear_1.weight" {
                *tensor = tensor.narrow(1, 0, ADDED).unwrap().contiguous().unwrap();
            }
        }
    });
    to
}
