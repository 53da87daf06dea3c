//! Families of which Kiln knows nothing but names and marks.

use crate::family::Family;
use crate::mark::Mark;

/// A row of [`KNOWN`].
struct Known {
    id: &'static str,
    label: &'static str,
    class_prefixes: &'static [(&'static str, &'static str)],
    marks: &'static [Mark],
    lora_marks: &'static [&'static str],
}

impl Family for Known {
    fn id(&self) -> &'static str {
        self.id
    }

    fn label(&self) -> &'static str {
        self.label
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        self.class_prefixes
    }

    fn marks(&self) -> &'static [Mark] {
        self.marks
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        self.lora_marks
    }
}

pub(crate) static HUNYUAN: &dyn Family = &Known {
    id: "hunyuan",
    label: "Hunyuan",
    class_prefixes: &[
        ("HunyuanVideo", "a HunyuanVideo model"),
        ("HunyuanDiT", "a HunyuanDiT model"),
        ("HunyuanImage", "a HunyuanImage model"),
    ],
    marks: &[
        Mark::names("a HunyuanVideo transformer", &["txt_in.individual_token_refiner.blocks.0.norm1.weight"]),
        Mark::names(
            "a HunyuanVideo transformer",
            &["context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight"],
        ),
        Mark::names("a HunyuanDiT transformer", &["mlp_t5.0.weight", "text_embedding_padding"]),
        Mark::names("a HunyuanDiT transformer", &["text_embedding_padding", "text_embedder.linear_1.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static AURA_FLOW: &dyn Family = &Known {
    id: "aura_flow",
    label: "AuraFlow",
    class_prefixes: &[("AuraFlowTransformer", "an AuraFlow transformer"), ("AuraFlow", "an AuraFlow model")],
    marks: &[
        Mark::names("an AuraFlow transformer", &["double_layers.0.attn.w1q.weight"]),
        Mark::names(
            "an AuraFlow transformer",
            &["joint_transformer_blocks.0.attn.add_k_proj.weight", "register_tokens"],
        ),
    ],
    lora_marks: &["joint_transformer_blocks", "double_layers", "single_layers"],
};

pub(crate) static OMNI_GEN: &dyn Family = &Known {
    id: "omni_gen",
    label: "OmniGen",
    class_prefixes: &[("OmniGen", "an OmniGen model")],
    marks: &[Mark::names("an OmniGen2 transformer", &["ref_image_refiner.0.attn.to_q.weight"])],
    lora_marks: &[],
};

pub(crate) static LUMINA: &dyn Family = &Known {
    id: "lumina",
    label: "Lumina 2",
    class_prefixes: &[("Lumina2Transformer", "a Lumina 2 transformer"), ("Lumina", "a Lumina model")],
    marks: &[
        Mark::names("a Lumina 2 transformer", &["cap_embedder.1.weight", "noise_refiner.0.attention_norm1.weight"]),
        Mark::names("a Lumina 2 transformer", &["time_caption_embed.caption_embedder.1.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static WAN: &dyn Family = &Known {
    id: "wan",
    label: "Wan",
    class_prefixes: &[("WanTransformer", "a Wan transformer"), ("Wan", "a Wan model")],
    marks: &[
        Mark::names("a Wan transformer", &["head.modulation", "blocks.0.self_attn.q.weight"]),
        Mark::names(
            "a Wan transformer",
            &["condition_embedder.time_embedder.linear_1.weight", "blocks.0.attn2.to_q.weight"],
        ),
    ],
    lora_marks: &["blocks.0.self_attn.", "blocks_0_self_attn_", "blocks.0.cross_attn.", "blocks_0_cross_attn_"],
};

pub(crate) static LTX: &dyn Family = &Known {
    id: "ltx",
    label: "LTX-Video",
    class_prefixes: &[("LTXVideoTransformer", "an LTX-Video transformer"), ("LTX", "an LTX-Video model")],
    marks: &[
        Mark::names("an LTX-Video transformer", &["patchify_proj.weight", "adaln_single.linear.weight"]),
        Mark::names(
            "an LTX-Video transformer",
            &["proj_in.weight", "time_embed.linear.weight", "caption_projection.linear_1.weight"],
        ),
    ],
    lora_marks: &[],
};

pub(crate) static SANA: &dyn Family = &Known {
    id: "sana",
    label: "Sana",
    class_prefixes: &[("SanaTransformer", "a Sana transformer"), ("Sana", "a Sana model")],
    marks: &[
        Mark::names("a Sana transformer", &["blocks.0.mlp.inverted_conv.conv.weight", "y_embedder.y_proj.fc1.weight"]),
        Mark::names("a Sana transformer", &["transformer_blocks.0.ff.conv_inverted.weight", "caption_norm.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static PIX_ART: &dyn Family = &Known {
    id: "pix_art",
    label: "PixArt",
    class_prefixes: &[("PixArtTransformer", "a PixArt transformer"), ("PixArt", "a PixArt model")],
    marks: &[
        Mark::names("a PixArt transformer", &["t_block.1.weight", "y_embedder.y_proj.fc1.weight"]),
        Mark::names("a PixArt transformer", &["adaln_single.linear.weight", "pos_embed.proj.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static COG_VIDEO: &dyn Family = &Known {
    id: "cog_video",
    label: "CogVideoX",
    class_prefixes: &[("CogVideoX", "a CogVideoX model"), ("CogView", "a CogView model")],
    marks: &[Mark::names(
        "a CogVideoX transformer",
        &["patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight"],
    )],
    lora_marks: &[],
};

pub(crate) static MOCHI: &dyn Family = &Known {
    id: "mochi",
    label: "Mochi",
    class_prefixes: &[("Mochi", "a Mochi model")],
    marks: &[Mark::names("a Mochi transformer", &["t5_yproj.weight"])],
    lora_marks: &[],
};

pub(crate) static COSMOS: &dyn Family = &Known {
    id: "cosmos",
    label: "Cosmos",
    class_prefixes: &[("Cosmos", "a Cosmos model")],
    marks: &[Mark::names("a Cosmos transformer", &["blocks.block0.blocks.0.block.attn.to_q.0.weight"])],
    lora_marks: &[],
};

pub(crate) static HI_DREAM: &dyn Family = &Known {
    id: "hi_dream",
    label: "HiDream",
    class_prefixes: &[("HiDream", "a HiDream model")],
    marks: &[
        Mark::names(
            "a HiDream transformer",
            &["caption_projection.0.linear.weight", "double_stream_blocks.0.block.norm1_i.weight"],
        ),
        Mark::names("a HiDream transformer", &["caption_projection.0.linear.weight", "x_embedder.proj.weight"]),
    ],
    lora_marks: &["double_stream_blocks"],
};

pub(crate) static SVD: &dyn Family = &Known {
    id: "svd",
    label: "Stable Video Diffusion",
    class_prefixes: &[
        ("StableVideoDiffusion", "a Stable Video Diffusion model"),
        ("UNetSpatioTemporal", "a Stable Video Diffusion U-Net"),
        ("AutoencoderKLTemporalDecoder", "a Stable Video Diffusion autoencoder"),
    ],
    marks: &[
        Mark::names("a Stable Video Diffusion U-Net", &["input_blocks.1.0.time_stack.emb_layers.1.weight"]),
        Mark::names("a Stable Video Diffusion U-Net", &["down_blocks.0.resnets.0.temporal_res_block.norm1.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static CASCADE: &dyn Family = &Known {
    id: "cascade",
    label: "Stable Cascade",
    class_prefixes: &[("StableCascade", "a Stable Cascade model"), ("Wuerstchen", "a Stable Cascade model")],
    marks: &[
        Mark::names("a Stable Cascade network", &["clip_txt_mapper.weight"]),
        Mark::names("a Stable Cascade network", &["effnet_mapper.0.weight"]),
    ],
    lora_marks: &[],
};

pub(crate) static KANDINSKY: &dyn Family = &Known {
    id: "kandinsky",
    label: "Kandinsky",
    class_prefixes: &[("Kandinsky", "a Kandinsky model")],
    marks: &[
        Mark::names("a Kandinsky 2 U-Net", &["add_embedding.image_norm.weight"]),
        Mark::names("a Kandinsky 2 U-Net", &["encoder_hid_proj.image_embeds.weight"]),
        Mark::names("a Kandinsky 2 prior", &["prd_embedding", "clip_mean"]),
        Mark::names("a Kandinsky 3 U-Net", &["projection_linear.weight", "time_embedding.linear_1.weight"]),
        Mark::names("a Kandinsky 5 transformer", &["visual_transformer_blocks.0.self_attention.to_query.weight"]),
    ],
    lora_marks: &["visual_transformer_blocks"],
};

pub(crate) static DEEP_FLOYD: &dyn Family = &Known {
    id: "deep_floyd",
    label: "DeepFloyd IF",
    class_prefixes: &[("IFPipeline", "a DeepFloyd IF model")],
    marks: &[Mark::names("a DeepFloyd IF U-Net", &["add_embedding.pool.positional_embedding"])],
    lora_marks: &[],
};

pub(crate) static ANIMATE_DIFF: &dyn Family = &Known {
    id: "animate_diff",
    label: "AnimateDiff",
    class_prefixes: &[("AnimateDiff", "an AnimateDiff model")],
    marks: &[Mark::part("an AnimateDiff motion module", &["motion_modules."])],
    lora_marks: &[],
};
