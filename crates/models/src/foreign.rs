//! Models of other families, which are recognized and not run.
//!
//! A family is known by names of tensors that only its networks have, or by the class in a configuration. The names are those of
//! diffusers, transformers and the networks' authors. A file has them with or without a prefix, such as `model.diffusion_model.`.

use serde::{Serialize, Serializer};

/// A network or a pipeline of a family that Kiln does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignModel(&'static str);

/// Parts of names that only one kind of network has.
const PARTS: &[(&str, &str)] =
    &[("an AnimateDiff motion module", "motion_modules."), ("a FLUX.1 ControlNet", "controlnet_single_blocks.")];

/// Groups of names: a file has all names of a group. More specific groups come first: the blocks of FLUX.1 are also in networks
/// that were derived from it.
const NAMES: &[(&str, &[&str])] = &[
    ("a Chroma transformer", &["distilled_guidance_layer.in_proj.weight"]),
    ("a FLUX.2 transformer", &["double_stream_modulation_img.lin.weight"]),
    ("a FLUX.2 transformer", &["double_stream_modulation_img.linear.weight"]),
    ("a FLUX.2 autoencoder", &["bn.running_mean", "decoder.conv_in.weight"]),
    ("a HunyuanVideo transformer", &["txt_in.individual_token_refiner.blocks.0.norm1.weight"]),
    ("a HunyuanVideo transformer", &["context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight"]),
    ("a HunyuanDiT transformer", &["mlp_t5.0.weight", "text_embedding_padding"]),
    ("a HunyuanDiT transformer", &["text_embedding_padding", "text_embedder.linear_1.weight"]),
    ("a FLUX.1 transformer", &["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"]),
    ("a FLUX.1 transformer", &["double_blocks.0.img_attn.norm.key_norm.scale"]),
    ("an AuraFlow transformer", &["double_layers.0.attn.w1q.weight"]),
    ("an AuraFlow transformer", &["joint_transformer_blocks.0.attn.add_k_proj.weight", "register_tokens"]),
    ("a Qwen-Image transformer", &["transformer_blocks.0.img_mod.1.weight", "txt_norm.weight"]),
    ("a Stable Diffusion 3 ControlNet", &["controlnet_blocks.0.weight", "pos_embed_input.proj.weight"]),
    ("a Stable Diffusion 3 transformer", &["joint_blocks.0.x_block.attn.qkv.weight"]),
    ("a Stable Diffusion 3 transformer", &["transformer_blocks.0.attn.add_k_proj.weight", "pos_embed.proj.weight"]),
    ("a FLUX.1 transformer", &["single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight"]),
    ("a Z-Image transformer", &["cap_pad_token", "cap_embedder.1.weight"]),
    ("an OmniGen2 transformer", &["ref_image_refiner.0.attn.to_q.weight"]),
    ("a Lumina 2 transformer", &["cap_embedder.1.weight", "noise_refiner.0.attention_norm1.weight"]),
    ("a Lumina 2 transformer", &["time_caption_embed.caption_embedder.1.weight"]),
    ("a Wan transformer", &["head.modulation", "blocks.0.self_attn.q.weight"]),
    ("a Wan transformer", &["condition_embedder.time_embedder.linear_1.weight", "blocks.0.attn2.to_q.weight"]),
    ("an LTX-Video transformer", &["patchify_proj.weight", "adaln_single.linear.weight"]),
    ("an LTX-Video transformer", &["proj_in.weight", "time_embed.linear.weight", "caption_projection.linear_1.weight"]),
    ("a Sana transformer", &["blocks.0.mlp.inverted_conv.conv.weight", "y_embedder.y_proj.fc1.weight"]),
    ("a Sana transformer", &["transformer_blocks.0.ff.conv_inverted.weight", "caption_norm.weight"]),
    ("a PixArt transformer", &["t_block.1.weight", "y_embedder.y_proj.fc1.weight"]),
    ("a PixArt transformer", &["adaln_single.linear.weight", "pos_embed.proj.weight"]),
    ("a CogVideoX transformer", &["patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight"]),
    ("a Mochi transformer", &["t5_yproj.weight"]),
    ("a Cosmos transformer", &["blocks.block0.blocks.0.block.attn.to_q.0.weight"]),
    ("a HiDream transformer", &["caption_projection.0.linear.weight", "double_stream_blocks.0.block.norm1_i.weight"]),
    ("a HiDream transformer", &["caption_projection.0.linear.weight", "x_embedder.proj.weight"]),
    ("a Stable Video Diffusion U-Net", &["input_blocks.1.0.time_stack.emb_layers.1.weight"]),
    ("a Stable Video Diffusion U-Net", &["down_blocks.0.resnets.0.temporal_res_block.norm1.weight"]),
    ("a Stable Cascade network", &["clip_txt_mapper.weight"]),
    ("a Stable Cascade network", &["effnet_mapper.0.weight"]),
    ("a Kandinsky 2 U-Net", &["add_embedding.image_norm.weight"]),
    ("a Kandinsky 2 U-Net", &["encoder_hid_proj.image_embeds.weight"]),
    ("a Kandinsky 2 prior", &["prd_embedding", "clip_mean"]),
    ("a Kandinsky 3 U-Net", &["projection_linear.weight", "time_embedding.linear_1.weight"]),
    ("a Kandinsky 5 transformer", &["visual_transformer_blocks.0.self_attention.to_query.weight"]),
    ("a DeepFloyd IF U-Net", &["add_embedding.pool.positional_embedding"]),
    ("an autoencoder of Wan or Qwen-Image", &["decoder.middle.0.residual.0.gamma"]),
    ("an autoencoder of Wan or Qwen-Image", &["decoder.mid_block.resnets.0.norm1.gamma"]),
    ("a UMT5 text encoder", &["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"]),
    ("a UMT5 text encoder", &["blocks.0.attn.q.weight", "blocks.0.ffn.gate.0.weight", "token_embedding.weight"]),
    ("a T5 text encoder", &["encoder.block.0.layer.0.SelfAttention.q.weight"]),
    ("a T5 text encoder", &["enc.blk.0.attn_q.weight"]), // the names of GGUF
    ("a Qwen-VL text encoder", &["model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.attn.qkv.weight"]),
    ("a Gemma text encoder", &["model.layers.0.pre_feedforward_layernorm.weight"]),
    ("a Qwen3 text encoder", &["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.weight"]),
    ("a language model", &["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"]),
    ("a language model", &["blk.0.attn_q.weight", "token_embd.weight"]), // the names of GGUF
];

/// Parts of the names in LoRA files, and the model that they are for. The second kind of names has no dots.
const LORAS: &[(&str, &[&str])] = &[
    ("FLUX.1", &["double_blocks", "single_blocks", "single_transformer_blocks"]),
    ("Qwen-Image", &["transformer_blocks.0.txt_m", "transformer_blocks_0_txt_m"]),
    ("Stable Diffusion 3", &["joint_blocks", "add_k_proj"]),
    ("Wan", &["blocks.0.self_attn.", "blocks_0_self_attn_", "blocks.0.cross_attn.", "blocks_0_cross_attn_"]),
    (
        "Z-Image",
        &["diffusion_model.layers.0.attention.", "transformer.layers.0.attention.", "lora_unet_layers_0_attention_"],
    ),
];

/// Beginnings of the names of classes in `model_index.json` and `config.json`.
const CLASSES: &[(&str, &str)] = &[
    ("Flux2", "a FLUX.2 model"),
    ("Flux", "a FLUX.1 model"),
    ("Chroma", "a Chroma model"),
    ("StableDiffusion3", "a Stable Diffusion 3 model"),
    ("SD3", "a Stable Diffusion 3 model"),
    ("ZImage", "a Z-Image model"),
    ("QwenImage", "a Qwen-Image model"),
    ("Qwen", "a Qwen text encoder"),
    ("Gemma", "a Gemma text encoder"),
    ("Llama", "a Llama text encoder"),
    ("T5", "a T5 text encoder"),
    ("UMT5", "a UMT5 text encoder"),
    ("Wan", "a Wan model"),
    ("LTX", "an LTX-Video model"),
    ("HunyuanVideo", "a HunyuanVideo model"),
    ("HunyuanDiT", "a HunyuanDiT model"),
    ("HunyuanImage", "a HunyuanImage model"),
    ("PixArt", "a PixArt model"),
    ("Sana", "a Sana model"),
    ("Lumina", "a Lumina model"),
    ("AuraFlow", "an AuraFlow model"),
    ("StableVideoDiffusion", "a Stable Video Diffusion model"),
    ("UNetSpatioTemporal", "a Stable Video Diffusion model"),
    ("AnimateDiff", "an AnimateDiff model"),
    ("MotionAdapter", "an AnimateDiff motion module"),
    ("Kandinsky", "a Kandinsky model"),
    ("StableCascade", "a Stable Cascade model"),
    ("Wuerstchen", "a Stable Cascade model"),
    ("CogVideoX", "a CogVideoX model"),
    ("Mochi", "a Mochi model"),
    ("Cosmos", "a Cosmos model"),
    ("HiDream", "a HiDream model"),
    ("OmniGen", "an OmniGen model"),
    ("IFPipeline", "a DeepFloyd IF model"),
    ("StableDiffusionInstructPix2Pix", "a model that edits images by instructions (InstructPix2Pix)"),
    ("StableDiffusionUpscale", "the upscaler of Stable Diffusion 2"),
    ("StableDiffusionLatentUpscale", "an upscaler of latents"),
    ("StableDiffusionDepth2Img", "a Stable Diffusion model with a depth map"),
];

impl ForeignModel {
    /// The family of a file whose tensors have these names. LoRAs have no family here: see [`Self::of_lora`].
    pub fn of(keys: &[String]) -> Option<Self> {
        let part = |(_, part): &&(&str, &str)| keys.iter().any(|key| key.contains(part));
        if let Some((label, _)) = PARTS.iter().find(part) {
            return Some(Self(label));
        }
        let has = |name: &&str| {
            let is_it =
                |key: &String| key.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            keys.iter().any(is_it)
        };
        NAMES.iter().find(|(_, names)| names.iter().all(has)).map(|(label, _)| Self(label))
    }

    /// The family of a class in `model_index.json` or `config.json`.
    pub fn of_class(class: &str) -> Option<Self> {
        CLASSES.iter().find(|(begin, _)| class.starts_with(begin)).map(|(_, label)| Self(label))
    }

    /// The family that a LoRA with these tensors is for, where it is none of Stable Diffusion 1, 2 and XL.
    pub fn of_lora(keys: &[String]) -> Option<&'static str> {
        let has = |part: &&str| keys.iter().any(|key| key.contains(part));
        LORAS.iter().find(|(_, parts)| parts.iter().any(has)).map(|(family, _)| *family)
    }

    /// A name with its article: `a FLUX.1 transformer`.
    pub fn label(self) -> &'static str {
        self.0
    }

    /// The name, and that Kiln does not run it.
    pub fn sentence(self) -> String {
        format!("{}: Kiln does not run it yet; it runs Stable Diffusion 1, 2 and XL", self.0)
    }
}

impl Serialize for ForeignModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(names: &[&str]) -> Option<&'static str> {
        ForeignModel::of(&names.iter().map(ToString::to_string).collect::<Vec<_>>()).map(ForeignModel::label)
    }

    #[test]
    fn every_group_of_names_is_recognized_with_and_without_a_prefix() {
        for &(expected, names) in NAMES {
            let prefixed: Vec<String> = names.iter().map(|name| format!("model.diffusion_model.{name}")).collect();
            assert_eq!(label(names), Some(expected), "{names:?}");
            assert_eq!(ForeignModel::of(&prefixed).map(ForeignModel::label), Some(expected), "{names:?}");
        }
        assert_eq!(label(&["down_blocks.0.motion_modules.0.norm.weight"]), Some("an AnimateDiff motion module"));
    }

    #[test]
    fn networks_derived_from_flux_are_not_flux() {
        let flux = ["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"];
        assert_eq!(label(&flux), Some("a FLUX.1 transformer"));
        let chroma = [&flux[..], &["distilled_guidance_layer.in_proj.weight"]].concat();
        assert_eq!(label(&chroma), Some("a Chroma transformer"));
        let video = [&flux[..], &["txt_in.individual_token_refiner.blocks.0.norm1.weight"]].concat();
        assert_eq!(label(&video), Some("a HunyuanVideo transformer"));
    }

    #[test]
    fn names_of_stable_diffusion_belong_to_no_other_family() {
        for names in [
            &["conv_in.weight", "time_embedding.linear_1.weight", "down_blocks.0.resnets.0.norm1.weight"][..],
            &["model.diffusion_model.input_blocks.0.0.weight", "cond_stage_model.model.token_embedding.weight"],
            &["text_model.encoder.layers.0.self_attn.q_proj.weight", "text_model.encoder.layers.0.mlp.fc1.weight"],
            &["lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight"],
            &["decoder.conv_in.weight", "decoder.mid_block.resnets.0.norm1.weight"],
        ] {
            assert_eq!(label(names), None, "{names:?}");
            let keys: Vec<String> = names.iter().map(ToString::to_string).collect();
            assert_eq!(ForeignModel::of_lora(&keys), None, "{names:?}");
        }
        for class in ["StableDiffusionPipeline", "StableDiffusionXLPipeline", "UNet2DConditionModel", "CLIPTextModel"] {
            assert_eq!(ForeignModel::of_class(class), None, "{class}");
        }
    }

    #[test]
    fn classes_and_loras_have_a_family() {
        let class = |name| ForeignModel::of_class(name).map(ForeignModel::label);
        assert_eq!(class("FluxPipeline"), Some("a FLUX.1 model"));
        assert_eq!(class("Flux2KleinPipeline"), Some("a FLUX.2 model"));
        assert_eq!(class("SD3Transformer2DModel"), Some("a Stable Diffusion 3 model"));
        let lora = |name: &str| ForeignModel::of_lora(&[name.to_string()]);
        assert_eq!(lora("lora_unet_double_blocks_0_img_attn_proj.lora_up.weight"), Some("FLUX.1"));
        assert_eq!(lora("transformer.transformer_blocks.0.attn.add_k_proj.lora_A.weight"), Some("Stable Diffusion 3"));
        assert_eq!(lora("diffusion_model.layers.0.attention.to_k.lora_A.weight"), Some("Z-Image"));
    }
}
