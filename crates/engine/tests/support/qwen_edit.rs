//! Qwen-Image-Edit with tiny networks, whose weights are those of a formula (`tests/reference/qwen_edit.py`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use kiln_engine::ModelFolder;
use kiln_engine::pipeline::{DecoderNetwork, EncoderNetwork};
use kiln_testkit::fixtures;

/// Names and shapes of the parameters of segments.
macro_rules! params {
    ($segments:expr) => {
        $segments.iter().flat_map(|segment| segment.params()).map(|param| (param.key.clone(), param.shape.to_vec()))
    };
}
#[allow(unused_imports, reason = "the server's tests have this model alone")]
pub(crate) use params;

const CONFIGS: &[(&str, &str)] = &[
    (
        "scheduler/scheduler_config.json",
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5,
            "max_image_seq_len": 8192, "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
            "time_shift_type": "exponential", "use_dynamic_shifting": true}"#,
    ),
    (
        "text_encoder/config.json",
        r#"{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "vocab_size": 270,
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
            "rope_scaling": {"mrope_section": [2, 3, 3], "type": "mrope"},
            "vision_config": {"depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
                "out_hidden_size": 32, "fullatt_block_indexes": [1]}}"#,
    ),
    (
        "vae/config.json",
        r#"{"_class_name": "AutoencoderKLQwenImage", "base_dim": 4, "z_dim": 4, "dim_mult": [1, 2, 2, 2],
            "num_res_blocks": 1, "latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [1.5, 2.5, 0.5, 1.25]}"#,
    ),
];

/// The image that is an argument of the generator too.
pub fn second() -> PathBuf {
    fixtures("qwen_edit/second.png")
}

/// Values of about 1 that do not repeat.
fn weight(name: &str, shape: &[usize]) -> Tensor {
    let (count, seed) = (shape.iter().product::<usize>(), name.bytes().map(usize::from).sum::<usize>());
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 3.4 - 1.7;
    let values = Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), shape, &Device::Cpu).unwrap();
    if shape.iter().max() == Some(&count) {
        return values.affine(0.1, 0.5).unwrap();
    }
    let inputs: usize = shape.iter().skip(1).product();
    values.affine(1.0 / (inputs as f64).sqrt(), 0.0).unwrap()
}

/// Writes a file with weights for parameters with these names and shapes.
pub fn write(path: &Path, params: impl Iterator<Item = (String, Vec<usize>)>) {
    let tensors: HashMap<String, Tensor> = params.map(|(key, shape)| (key.clone(), weight(&key, &shape))).collect();
    candle_core::safetensors::save(&tensors, path).unwrap();
}

/// Writes a model whose pipeline in diffusers is `class`, with references at timestep 0 if `zero_cond_t`.
pub fn write_model(folder: &Path, class: &str, zero_cond_t: bool) {
    let own = [
        (
            "model_index.json",
            format!(
                r#"{{"_class_name": "{class}", "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
                    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
                    "tokenizer": ["transformers", "Qwen2Tokenizer"],
                    "transformer": ["diffusers", "QwenImageTransformer2DModel"], "vae": ["diffusers", "AutoencoderKLQwenImage"]}}"#
            ),
        ),
        (
            "transformer/config.json",
            format!(
                r#"{{"_class_name": "QwenImageTransformer2DModel", "in_channels": 16, "out_channels": 4, "num_layers": 2,
                    "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
                    "axes_dims_rope": [4, 6, 6], "zero_cond_t": {zero_cond_t}}}"#
            ),
        ),
    ];
    let shared = CONFIGS.iter().map(|(name, text)| (*name, (*text).to_string()));
    for (name, text) in shared.chain(own) {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::fs::create_dir_all(folder.join("tokenizer")).unwrap();
    std::fs::copy(fixtures("qwen_edit/tokenizer.json"), folder.join("tokenizer/tokenizer.json")).unwrap();
    let model = ModelFolder::open(folder).unwrap();
    let text = model.family().text_stage(model.texts(), model.denoiser_config()).unwrap();
    let decoder = DecoderNetwork::kl(model.vae_config().clone());
    let encoder = EncoderNetwork::of(&decoder);
    write(&folder.join("text_encoder/model.safetensors"), params!(text.networks()[0].segments));
    write(&folder.join("transformer/diffusion_pytorch_model.safetensors"), params!(model.denoiser().segments()));
    let vae = params!(encoder.segments()).chain(params!(decoder.segments()));
    write(&folder.join("vae/diffusion_pytorch_model.safetensors"), vae);
}
