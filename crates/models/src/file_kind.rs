//! Detects the kind of network in a file by its tensor names.

use kiln_families::{control_label, denoiser_label};
use kiln_weights::ParamSource;
use serde::Serialize;

use crate::foreign::ForeignModel;

/// The kind of a checkpoint file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A whole model in one file, with the names of CompVis' code.
    Checkpoint,
    /// Small changes to another network's weights: LoRA and similar adapters.
    Lora,
    /// A ControlNet.
    ControlNet,
    /// A ControlNet for several kinds of control images.
    ControlUnion,
    /// A ControlNet as low-rank changes of the U-Net's own weights.
    ControlLora,
    /// ControlNet-LLLite: small networks next to the U-Net's attention.
    ControlLllite,
    /// A T2I-Adapter.
    T2iAdapter,
    /// An IP-Adapter.
    IpAdapter,
    /// Only a U-Net, with the names of diffusers or of CompVis' code.
    Unet,
    /// An autoencoder, both halves or one.
    Vae,
    /// TAESD, the tiny autoencoder, both halves or one.
    Taesd,
    /// A CLIP text encoder.
    TextEncoder,
    /// A T5 text encoder.
    T5,
    /// A Qwen3 text encoder.
    Qwen3,
    /// A Qwen2.5-VL text encoder.
    QwenVl,
    /// A CLIP image encoder, as IP-Adapters take.
    ImageEncoder,
    /// Embeddings of new tokens (textual inversion).
    TextualInversion,
    /// An upscaler: ESRGAN or a similar network.
    Upscaler,
    /// None of these.
    Unknown,
    /// A control network for a denoiser that is no U-Net, of a family that Kiln runs; its name with the article.
    #[serde(untagged)]
    Control(&'static str),
    /// A denoiser that is no U-Net, of a family that Kiln runs; its name with the article.
    #[serde(untagged)]
    Denoiser(&'static str),
    /// A network of a family that Kiln does not run.
    #[serde(untagged)]
    Foreign(ForeignModel),
}

/// Name parts that only one kind has.
const PARTS: [(FileKind, &[&str]); 7] = [
    // The first files of ControlNet's authors have the whole model, too.
    (FileKind::ControlNet, &["control_model.input_hint_block."]),
    // A checkpoint contains a U-Net, an autoencoder and text encoders, so it is tested early.
    (FileKind::Checkpoint, &["model.diffusion_model.input_blocks."]),
    (FileKind::ControlLora, &["lora_controlnet"]),
    (FileKind::ControlLllite, &["lllite"]),
    (FileKind::ControlUnion, &["control_add_embedding.linear_1."]),
    // Some have LoRAs in them.
    (FileKind::IpAdapter, &["ip_adapter.1.to_k_ip."]),
    (
        FileKind::Lora,
        &[
            ".lora_up.",
            ".lora_down.",
            ".lora_A.",
            ".lora_B.",
            "_lora.up.",
            "_lora.down.",
            ".lora.up.",
            ".lora.down.",
            ".lora_linear_layer.",
            ".hada_w1_",
            ".lokr_w",
            ".oft_diag",
            ".oft_blocks",
            ":up",
            ":down",
        ],
    ),
];

/// Names of a diffusers U-Net. A ControlNet has them as well.
pub(crate) const DIFFUSERS_UNET: [&str; 2] = ["conv_in.weight", "time_embedding.linear_1.weight"];

/// Groups of names that only one kind has: all names of a group must exist.
const WHOLE: [(FileKind, &[&str]); 33] = [
    (FileKind::ControlNet, &["controlnet_cond_embedding.conv_in.weight"]),
    (FileKind::ControlNet, &["input_hint_block.0.weight"]),
    (FileKind::T2iAdapter, &["adapter.conv_in.weight", "adapter.body.0.resnets.0.block1.weight"]),
    (FileKind::T2iAdapter, &["adapter.body.0.in_conv.weight", "adapter.body.0.resnets.0.block1.weight"]), // the light form
    (FileKind::T2iAdapter, &["conv_in.weight", "body.0.block1.weight", "body.0.block2.weight"]), // TencentARC's names
    (FileKind::T2iAdapter, &["body.0.in_conv.weight", "body.0.body.0.block1.weight"]),           // the light form
    (FileKind::Unet, &DIFFUSERS_UNET),
    (FileKind::Unet, &["input_blocks.0.0.weight", "time_embed.0.weight", "out.2.weight"]), // CompVis' names
    (FileKind::Vae, &["decoder.conv_in.weight", "decoder.conv_norm_out.weight"]),
    (FileKind::Vae, &["encoder.conv_in.weight", "encoder.conv_norm_out.weight"]),
    (FileKind::Vae, &["decoder.conv_in.weight", "decoder.norm_out.weight"]), // CompVis' names
    (FileKind::Vae, &["decoder.conv_in.weight", "decoder.norm_out.gamma"]),  // of videos, as Qwen-Image has it
    (FileKind::Vae, &["decoder.conv1.weight", "decoder.head.0.gamma"]),      // the names of Wan's authors
    (FileKind::Taesd, &["decoder.layers.0.weight", "decoder.layers.2.conv.0.weight"]),
    (FileKind::Taesd, &["encoder.layers.0.weight", "encoder.layers.1.conv.0.weight"]),
    (FileKind::TextEncoder, &["text_model.embeddings.token_embedding.weight"]),
    (FileKind::TextEncoder, &["embeddings.token_embedding.weight", "final_layer_norm.weight"]),
    (FileKind::TextEncoder, &["token_embedding.weight", "positional_embedding", "transformer.resblocks.0.ln_1.weight"]), // OpenCLIP's names
    (FileKind::T5, &["encoder.block.0.layer.0.SelfAttention.q.weight"]),
    (FileKind::T5, &["enc.blk.0.attn_q.weight"]), // the names of GGUF
    (FileKind::Qwen3, &["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.weight"]),
    (FileKind::Qwen3, &["blk.0.attn_q_norm.weight", "token_embd.weight"]), // the names of GGUF
    (FileKind::QwenVl, &["model.layers.0.self_attn.q_proj.bias", "model.embed_tokens.weight"]),
    (
        FileKind::QwenVl,
        &["model.language_model.layers.0.self_attn.q_proj.bias", "model.language_model.embed_tokens.weight"],
    ),
    (FileKind::QwenVl, &["blk.0.attn_q.bias", "token_embd.weight"]), // the names of GGUF
    (FileKind::ImageEncoder, &["vision_model.embeddings.patch_embedding.weight"]),
    (FileKind::ImageEncoder, &["visual.conv1.weight"]), // OpenCLIP's names
    (FileKind::TextualInversion, &["emb_params"]),
    (FileKind::TextualInversion, &["clip_g"]), // for both text encoders of XL; a few files lack `clip_l`
    (FileKind::TextualInversion, &["clip_l"]),
    (FileKind::TextualInversion, &["string_to_param.*"]), // AUTOMATIC1111's
    (FileKind::Upscaler, &["conv_first.weight", "conv_last.weight"]), // RRDBNet
    (FileKind::Upscaler, &["body.0.weight", "body.1.weight", "body.2.weight"]), // SRVGGNetCompact
];

/// Prefixes of an autoencoder's names in a file of a whole model.
const VAE_PREFIXES: [&str; 2] = ["first_stage_model.", "vae."];

impl FileKind {
    /// The kind of a file, by the names of its tensors and a few of their shapes.
    pub fn of(file: &dyn ParamSource) -> Self {
        let keys = file.keys();
        let has_part = |part: &&str| keys.iter().any(|key| key.contains(part));
        let has = |name: &&str| keys.iter().any(|key| key == name);
        let by_part = PARTS.iter().find(|(_, parts)| parts.iter().any(has_part));
        let foreign = || ForeignModel::of(file).map(Self::Foreign);
        // Files of ComfyUI and of Stability AI have the other networks too.
        let is_whole = || keys.iter().any(|key| VAE_PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
        let control = || control_label(file).map(|(_, label)| Self::Control(label));
        let denoiser = || {
            let label = denoiser_label(file)?;
            Some(if is_whole() { Self::Checkpoint } else { Self::Denoiser(label) })
        };
        let by_name = || WHOLE.iter().find(|(_, names)| names.iter().all(has));
        // diffusers' `learned_embeds` are named after the tokens: `<cat-toy>`.
        let is_word = |key: &String| key.starts_with('<') && key.ends_with('>');
        let words = if !keys.is_empty() && keys.iter().all(is_word) { Self::TextualInversion } else { Self::Unknown };
        // Parts of LoRAs have the names of the layers that they change.
        match by_part {
            Some(&(Self::Lora, _)) => Self::Lora,
            _ => {
                let named = || by_part.or_else(by_name).map_or(words, |&(kind, _)| kind);
                foreign().or_else(control).or_else(denoiser).unwrap_or_else(named)
            }
        }
    }

    /// The option of a request that takes such a file, for a message about a file that is given instead of a model.
    pub(crate) fn option(self) -> Option<&'static str> {
        Some(match self {
            Self::Lora => "loras",
            Self::ControlNet
            | Self::ControlUnion
            | Self::ControlLora
            | Self::ControlLllite
            | Self::T2iAdapter
            | Self::Control(_) => "controls",
            Self::IpAdapter => "ip_adapters",
            Self::Unet | Self::Denoiser(_) => "unet",
            Self::Vae => "vae",
            Self::Taesd => "taesd",
            Self::TextEncoder | Self::T5 | Self::Qwen3 | Self::QwenVl => "text_encoder",
            Self::TextualInversion => "embeddings_dir",
            Self::Upscaler => "hires_upscaler",
            Self::Checkpoint | Self::ImageEncoder | Self::Unknown | Self::Foreign(_) => return None,
        })
    }

    /// A description of the kind for messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Checkpoint => "a whole model in one file",
            Self::Lora => "a LoRA or a similar adapter",
            Self::ControlNet => "a ControlNet",
            Self::ControlUnion => "a ControlNet for several kinds of control images (Union)",
            Self::ControlLora => "a control LoRA",
            Self::ControlLllite => "a ControlNet-LLLite",
            Self::T2iAdapter => "a T2I-Adapter",
            Self::IpAdapter => "an IP-Adapter",
            Self::Unet => "a U-Net",
            Self::Vae => "an autoencoder (VAE)",
            Self::Taesd => "a tiny autoencoder (TAESD)",
            Self::TextEncoder => "a CLIP text encoder",
            Self::T5 => "a T5 text encoder",
            Self::Qwen3 => "a Qwen3 text encoder",
            Self::QwenVl => "a Qwen2.5-VL text encoder",
            Self::ImageEncoder => "a CLIP image encoder",
            Self::TextualInversion => "an embedding (textual inversion)",
            Self::Upscaler => "an upscaler (ESRGAN or a similar network)",
            Self::Unknown => "an unknown kind of file (no known tensor names)",
            Self::Control(label) | Self::Denoiser(label) => label,
            Self::Foreign(model) => model.label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_weights::MapSource;

    use super::*;

    /// A file of tensors with these names.
    fn named(names: &[&str]) -> MapSource {
        let tensor = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        names.iter().map(|name| (name.to_string(), tensor.clone())).collect()
    }

    #[test]
    fn the_most_specific_name_decides() {
        let kind = |names: &[&str]| FileKind::of(&named(names));
        let unet = ["conv_in.weight", "time_embedding.linear_1.weight"];
        assert_eq!(kind(&unet), FileKind::Unet);
        assert_eq!(kind(&[&unet[..], &["controlnet_cond_embedding.conv_in.weight"]].concat()), FileKind::ControlNet);
        let checkpoint = ["model.diffusion_model.input_blocks.0.0.weight", "first_stage_model.decoder.conv_in.weight"];
        assert_eq!(kind(&checkpoint), FileKind::Checkpoint);
        assert_eq!(kind(&["lora_unet_mid_block.lora_up.weight"]), FileKind::Lora);
        assert_eq!(kind(&["text_encoder:0:down"]), FileKind::Lora);
        assert_eq!(kind(&["<cat-toy>"]), FileKind::TextualInversion);
        assert_eq!(kind(&["conv_first.weight", "body.0.rdb1.conv1.weight", "conv_last.weight"]), FileKind::Upscaler);
        assert_eq!(kind(&["input_blocks.0.0.weight", "time_embed.0.weight", "out.2.weight"]), FileKind::Unet);
        assert_eq!(kind(&["clip_g", "clip_l"]), FileKind::TextualInversion);
        assert_eq!(kind(&["vision_model.embeddings.patch_embedding.weight"]), FileKind::ImageEncoder);
        assert_eq!(kind(&["encoder.block.0.layer.0.SelfAttention.q.weight"]).label(), "a T5 text encoder");
        assert_eq!(kind(&["lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight"]), FileKind::Lora);
        assert_eq!(kind(&["conv_in.weight"]), FileKind::Unknown);
        assert_eq!(kind(&[]), FileKind::Unknown);
    }
}
