//! Qwen-Image: a folder converts to one file and back, also its autoencoder, whose kernels have five dimensions.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use kiln_models::{Component, DTypeChoice, Error, Inspected, ModelFolder, ModelOptions, WeightType, convert, inspect};
use kiln_vae::{Decoder, Encoder};
use kiln_weights::ldm::{QwenDialect, VaeDialect, VaeShape};
use kiln_weights::{Checkpoint, ParamSource};
use safetensors::{SafeTensors, serialize};

use crate::common::{data, weights};

const CONFIGS: &[(&str, &str)] = &[
    (
        "model_index.json",
        r#"{"_class_name": "QwenImagePipeline", "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
            "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
            "transformer": ["diffusers", "QwenImageTransformer2DModel"], "vae": ["diffusers", "AutoencoderKLQwenImage"]}"#,
    ),
    (
        "scheduler/scheduler_config.json",
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "shift_terminal": 0.02}"#,
    ),
    (
        "text_encoder/config.json",
        r#"{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "vocab_size": 40,
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1}"#,
    ),
    (
        "transformer/config.json",
        r#"{"_class_name": "QwenImageTransformer2DModel", "in_channels": 16, "out_channels": 4, "num_layers": 2,
            "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32, "axes_dims_rope": [4, 6, 6]}"#,
    ),
    (
        "vae/config.json",
        r#"{"_class_name": "AutoencoderKLQwenImage", "base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1,
            "latents_mean": [0.1, 0.2, 0.3, 0.4], "latents_std": [1.5, 2.5, 0.5, 1.25]}"#,
    ),
];
const PARTS: [&str; 3] = ["text_encoder/model", "transformer/diffusion_pytorch_model", "vae/diffusion_pytorch_model"];

/// Writes a model with random weights.
fn write(folder: &Path) {
    for (name, text) in CONFIGS {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let model = ModelFolder::open(folder).unwrap();
    let (decoder, encoder) = (Decoder::new(model.vae_config()), Encoder::new(model.vae_config()));
    let text = model.family().text_stage(model.texts(), model.denoiser_config()).unwrap();
    let denoiser = model.denoiser();
    let networks =
        [vec![text.networks()[0].segments], vec![denoiser.segments()], vec![encoder.segments(), decoder.segments()]];
    for (part, networks) in PARTS.iter().zip(networks) {
        fs::write(folder.join(format!("{part}.safetensors")), weights(&networks, 3)).unwrap();
    }
}

fn to(from: &Path, to: &Path, weight_type: WeightType) {
    let found = convert(from, to, &ModelOptions::default(), weight_type, false, &|| ControlFlow::Continue(())).unwrap();
    assert!(found.left_out.is_empty() && found.not_kept.is_empty(), "{found:?}");
}

#[test]
fn it_converts_to_a_file_and_back() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("own");
    write(&own);
    for name in ["all.safetensors", "all.gguf"] {
        let (file, again) = (root.path().join(name), root.path().join(format!("{name}-again")));
        to(&own, &file, WeightType::Keep);
        let (model, expected) = (ModelFolder::open(&file).unwrap(), ModelFolder::open(&own).unwrap());
        assert_eq!(model.vae_config(), expected.vae_config());
        assert_eq!(model.denoiser_config(), expected.denoiser_config());
        to(&file, &again, WeightType::Keep);
        for part in PARTS {
            let bytes = |folder: &Path| fs::read(folder.join(format!("{part}.safetensors"))).unwrap();
            assert!(data(&bytes(&own)) == data(&bytes(&again)), "{name} {part}");
        }
        let Inspected::File(report) = inspect(&file, DTypeChoice::F32).unwrap() else { panic!("a file") };
        let model = report.model.unwrap();
        assert_eq!((model.kind.id, model.problems.len(), model.unexpected.len()), ("qwen_image", 0, 0));
    }
    let quantized = root.path().join("q8.gguf");
    to(&own, &quantized, "q8_0".parse().unwrap());
    let Inspected::File(report) = inspect(&quantized, DTypeChoice::F32).unwrap() else { panic!("a file") };
    assert_eq!(report.model.unwrap().problems.len(), 0);
}

/// Writes the tensors of `from` under the names that `name` gives them, with its notes.
fn renamed(from: &Path, to: &Path, name: impl Fn(&str) -> String) {
    let bytes = fs::read(from).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(key, tensor)| (name(&key), tensor));
    let notes = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone();
    fs::write(to, serialize(tensors, notes).unwrap()).unwrap();
}

#[test]
fn files_of_comfyui_and_of_llama_cpp_are_those_of_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let own = path("own");
    write(&own);
    let weights = |folder: &Path, part: &str| folder.join(format!("{part}.safetensors"));
    let folder = Checkpoint::open(&weights(&own, PARTS[2])).unwrap();
    let frames = VaeShape::read(&folder).unwrap();
    let wan = VaeShape { dialect: VaeDialect::Wan, ..frames.clone() }.names();
    let wan = |key: &str| wan.place(key).unwrap().name;
    // The autoencoder alone, and in a whole file.
    let vae = path("vae.safetensors");
    renamed(&weights(&own, PARTS[2]), &vae, wan);
    assert_eq!(VaeShape::read(&Checkpoint::open(&vae).unwrap()).unwrap().channels, frames.channels);
    to(&own, &path("diffusers.safetensors"), WeightType::Keep);
    let whole = path("whole.safetensors");
    renamed(&path("diffusers.safetensors"), &whole, |key| match key.strip_prefix("first_stage_model.") {
        Some(key) => format!("vae.{}", wan(key)),
        None => key.to_string(),
    });
    // A language model under llama.cpp's names.
    let text = path("text.safetensors");
    let gguf = QwenDialect::Gguf.names();
    renamed(&weights(&own, PARTS[0]), &text, |key| gguf.place(key).unwrap().name);
    let others = ModelOptions { vae: Some(vae), text_encoders: vec![text], ..ModelOptions::default() };
    for (model, options) in [(&own, &others), (&whole, &others), (&whole, &ModelOptions::default())] {
        let model = ModelFolder::open_with(model, options).unwrap();
        assert_eq!(model.vae_config(), ModelFolder::open(&own).unwrap().vae_config());
        for (part, component) in PARTS.iter().zip([Component::TextEncoder(0), Component::Denoiser, Component::Vae]) {
            let (expected, found) = (Checkpoint::open(&weights(&own, part)).unwrap(), model.files().weights(component));
            let found = found.unwrap();
            for key in expected.keys() {
                let bytes = |source: &dyn ParamSource| source.data(&key).unwrap().map(|data| data.bytes.into_owned());
                assert!(bytes(&expected) == bytes(found.as_ref()), "{part}: {key}");
            }
        }
    }
    let Inspected::File(report) = inspect(&whole, DTypeChoice::F32).unwrap() else { panic!("a file") };
    let model = report.model.unwrap();
    assert_eq!((model.kind.id, model.problems.len(), model.unexpected.len()), ("qwen_image", 0, 0));
}

/// The tokenizer is that of Qwen2, which has 151,665 tokens.
#[test]
fn a_file_without_a_tokenizer_has_that_of_qwen2() {
    let root = tempfile::tempdir().unwrap();
    let (own, file) = (root.path().join("own"), root.path().join("all.safetensors"));
    write(&own);
    to(&own, &file, WeightType::Keep);
    match ModelFolder::open(&file).unwrap().text_stage() {
        Err(Error::Tokens { vocab_size, tokenizer, .. }) => assert_eq!((vocab_size, tokenizer.tokens()), (40, 151_665)),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_file() {
    let root = tempfile::tempdir().unwrap();
    write(root.path());
    let path = root.path().join("vae/diffusion_pytorch_model.safetensors");
    let text = fs::read(&path).unwrap();
    let position = text.windows(16).position(|window| window == b"\"quant_conv.bias").unwrap();
    let mut other = text;
    other[position + 1] = b'x';
    fs::write(&path, other).unwrap();
    let to = root.path().join("all.safetensors");
    let failed =
        convert(root.path(), &to, &ModelOptions::default(), WeightType::Keep, false, &|| ControlFlow::Continue(()));
    let message = failed.unwrap_err().to_string();
    assert!(
        message.contains("quant_conv.bias") && message.contains("diffusion_pytorch_model.safetensors"),
        "{message}"
    );
}
