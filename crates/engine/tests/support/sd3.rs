//! Stable Diffusion 3 with tiny networks, whose weights are those of a formula: two of CLIP's text encoders and T5.

use std::path::Path;

use kiln_engine::ModelFolder;
use kiln_engine::pipeline::{DecoderNetwork, EncoderNetwork};
use kiln_testkit::fixtures;
use serde_json::{Value, json};

use super::qwen_edit::{params, write};

/// CLIP's tokens in the tokenizers of the fixtures.
const CLIP_TOKENS: usize = 1214;
/// Channels of T5, and of CLIP's pooled vectors together.
const WIDTHS: [usize; 2] = [96, 40];

/// The configuration of one of CLIP's text encoders.
fn clip(width: usize, activation: &str, eos: usize) -> Value {
    json!({
        "architectures": ["CLIPTextModelWithProjection"], "hidden_size": width, "intermediate_size": 3 * width,
        "num_hidden_layers": 3, "num_attention_heads": 2, "projection_dim": width, "vocab_size": CLIP_TOKENS,
        "hidden_act": activation, "eos_token_id": eos,
    })
}

/// A tokenizer of T5 with the letters as tokens.
fn t5_tokenizer() -> Value {
    let special = [json!(["<pad>", 0.0]), json!(["</s>", 0.0]), json!(["<unk>", 0.0]), json!(["\u{2581}", -2.0])];
    let letters = ('a'..='z').map(|letter| json!([letter.to_string(), -3.0]));
    json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true},
        ]},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": special.into_iter().chain(letters).collect::<Vec<_>>()},
    })
}

/// Writes a model.
pub fn write_model(folder: &Path) {
    let blocks = |side: &str| vec![format!("{side}Block2D"); 4];
    let part = |library: &str, class: &str| json!([library, class]);
    let files = [
        (
            "model_index.json",
            json!({
                "_class_name": "StableDiffusion3Pipeline",
                "scheduler": part("diffusers", "FlowMatchEulerDiscreteScheduler"),
                "text_encoder": part("transformers", "CLIPTextModelWithProjection"),
                "text_encoder_2": part("transformers", "CLIPTextModelWithProjection"),
                "text_encoder_3": part("transformers", "T5EncoderModel"),
                "tokenizer": part("transformers", "CLIPTokenizer"),
                "tokenizer_2": part("transformers", "CLIPTokenizer"),
                "tokenizer_3": part("transformers", "T5TokenizerFast"),
                "transformer": part("diffusers", "SD3Transformer2DModel"),
                "vae": part("diffusers", "AutoencoderKL"),
            }),
        ),
        (
            "scheduler/scheduler_config.json",
            json!({"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}),
        ),
        ("text_encoder/config.json", clip(16, "quick_gelu", CLIP_TOKENS - 1)),
        ("text_encoder_2/config.json", clip(24, "gelu", 2)),
        (
            "text_encoder_3/config.json",
            json!({
                "architectures": ["T5EncoderModel"], "model_type": "t5", "feed_forward_proj": "gated-gelu",
                "d_model": WIDTHS[0], "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 3, "vocab_size": 40,
            }),
        ),
        ("tokenizer_3/tokenizer.json", t5_tokenizer()),
        (
            "transformer/config.json",
            json!({
                "_class_name": "SD3Transformer2DModel", "attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 2,
                "caption_projection_dim": 32, "in_channels": 16, "out_channels": 16, "joint_attention_dim": WIDTHS[0],
                "pooled_projection_dim": WIDTHS[1], "patch_size": 2, "pos_embed_max_size": 20, "sample_size": 16,
                "dual_attention_layers": [],
            }),
        ),
        (
            "vae/config.json",
            json!({
                "_class_name": "AutoencoderKL", "block_out_channels": [8, 8, 8, 8], "down_block_types": blocks("DownEncoder"),
                "up_block_types": blocks("UpDecoder"), "latent_channels": 16, "layers_per_block": 1, "norm_num_groups": 4,
                "scaling_factor": 1.5305, "shift_factor": 0.0609, "use_post_quant_conv": false, "use_quant_conv": false,
            }),
        ),
    ];
    for (name, value) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value.to_string()).unwrap();
    }
    for name in ["tokenizer", "tokenizer_2"] {
        std::os::unix::fs::symlink(fixtures("models/sdxl").join(name), folder.join(name)).unwrap();
    }
    let model = ModelFolder::open(folder).unwrap();
    let text = model.family().text_stage(model.texts(), model.denoiser_config()).unwrap();
    for (network, name) in text.networks().iter().zip(["text_encoder", "text_encoder_2", "text_encoder_3"]) {
        write(&folder.join(name).join("model.safetensors"), params!(network.segments));
    }
    let unet = model.denoiser();
    write(&folder.join("transformer/diffusion_pytorch_model.safetensors"), params!(unet.segments()));
    let decoder = DecoderNetwork::kl(model.vae_config().clone());
    let encoder = EncoderNetwork::of(&decoder);
    let vae = params!(encoder.segments()).chain(params!(decoder.segments()));
    write(&folder.join("vae/diffusion_pytorch_model.safetensors"), vae);
}
