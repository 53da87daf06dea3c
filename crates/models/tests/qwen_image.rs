//! Qwen-Image: a folder converts to one file and back, also its autoencoder, whose kernels have five dimensions.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use kiln_models::{DTypeChoice, Inspected, ModelFolder, ModelOptions, WeightType, convert, inspect};
use kiln_vae::{Decoder, Encoder};

use common::{data, weights};

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
