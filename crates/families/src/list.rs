//! The list of all families, and what is looked up in it.

use kiln_weights::ParamSource;
use kiln_weights::ldm::UnetShape;

use crate::component::{Component, ComponentKind};
use crate::family::FamilyRef;
use crate::mark::Mark;
use crate::{chroma, flux, flux2, known, qwen_image, sd, sd3, sdxl, shared, tiny_dit, z_image};

/// All families. The order is that of recognition: a family whose networks were derived from another's comes first, since it
/// has the tensors of that one as well.
pub static FAMILIES: &[FamilyRef] = &[
    sd::SD,
    sdxl::SDXL,
    tiny_dit::TINY_DIT,
    known::ANIMATE_DIFF,
    chroma::CHROMA,
    flux2::FLUX2,
    known::HUNYUAN,
    flux::FLUX,
    known::AURA_FLOW,
    qwen_image::QWEN_IMAGE,
    sd3::SD3,
    z_image::Z_IMAGE,
    known::OMNI_GEN,
    known::LUMINA,
    known::WAN,
    known::LTX,
    known::SANA,
    known::PIX_ART,
    known::COG_VIDEO,
    known::MOCHI,
    known::COSMOS,
    known::HI_DREAM,
    known::SVD,
    known::CASCADE,
    known::KANDINSKY,
    known::DEEP_FLOYD,
];

/// A network that Kiln recognizes and does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detected {
    /// Its name with the article: `a FLUX.1 transformer`.
    pub label: &'static str,
    /// Its family; `None` for networks of several families, as text encoders are.
    pub family: Option<FamilyRef>,
}

/// Recognizes the network of a file by its tensors. `None` for networks of families that Kiln runs, for adapters of these,
/// and for unknown files.
pub fn detect(file: &dyn ParamSource) -> Option<Detected> {
    let keys = file.keys();
    let has = |mark: &&Mark| mark.prefix(&keys).is_some();
    for &family in FAMILIES {
        if let Some(mark) = family.marks().iter().find(has) {
            return Some(Detected { label: mark.label, family: Some(family) });
        }
        // Families that this one was derived from come behind it, and have a part of its tensors.
        if family.denoiser_marks().iter().any(|mark| has(&mark)) {
            return None;
        }
    }
    if shared::RUN.iter().any(|mark| has(&mark)) {
        return None;
    }
    let shared = shared::MARKS.iter().find(has)?;
    Some(Detected { label: shared.label, family: None })
}

/// The name with the article of a denoiser in a file, of a family that Kiln runs. `None` for U-Nets and other files.
pub fn denoiser_label(file: &dyn ParamSource) -> Option<&'static str> {
    let keys = file.keys();
    let mut marks = FAMILIES.iter().flat_map(|family| family.denoiser_marks());
    marks.find(|mark| mark.prefix(&keys).is_some()).map(|mark| mark.label)
}

/// The name with the article of a control network in a file, of a family that Kiln runs, and the family. `None` for networks of
/// U-Nets and other files.
pub fn control_label(file: &dyn ParamSource) -> Option<(FamilyRef, &'static str)> {
    let keys = file.keys();
    let label = |family: &FamilyRef| {
        let mark = family.control_marks().iter().find(|mark| mark.prefix(&keys).is_some())?;
        Some((*family, mark.label))
    };
    FAMILIES.iter().find_map(label)
}

/// The first family whose control networks have this class, and the name of such a network with its article.
pub fn control_of_class(class: &str) -> Option<(FamilyRef, &'static str)> {
    FAMILIES.iter().find_map(|&family| {
        let (_, label) = family.control_classes().iter().find(|(known, _)| *known == class)?;
        Some((family, *label))
    })
}

/// The family that a LoRA with these tensors is for, by the names of layers; `None` for those of U-Nets.
pub fn lora_family(keys: &[String]) -> Option<FamilyRef> {
    FAMILIES.iter().copied().find(|&family| has_lora_mark(family, keys))
}

/// The family that a LoRA with these tensors is for, if Kiln does not run it.
pub fn known_lora(keys: &[String]) -> Option<FamilyRef> {
    FAMILIES.iter().copied().find(|&family| !family.runs() && has_lora_mark(family, keys))
}

/// Whether a LoRA with these tensors has names of `family`.
fn has_lora_mark(family: FamilyRef, keys: &[String]) -> bool {
    family.lora_marks().iter().any(|part| keys.iter().any(|key| key.contains(part)))
}

/// The family whose pipelines of this class run.
pub fn of_class(class: &str) -> Option<FamilyRef> {
    FAMILIES.iter().copied().find(|family| family.runs() && family.classes().contains(&class))
}

/// The family with this id.
pub fn of_id(id: &str) -> Option<FamilyRef> {
    FAMILIES.iter().copied().find(|family| family.id() == id)
}

/// The name with the article of what has `class` in its configuration, if Kiln recognizes it and does not run it.
pub fn class_label(class: &str) -> Option<Detected> {
    if of_class(class).is_some() {
        return None;
    }
    let begins = |(begin, label): &(&str, &'static str)| class.starts_with(begin).then_some(*label);
    let of_family = FAMILIES.iter().find_map(|&family| {
        let label = family.class_prefixes().iter().find_map(begins)?;
        Some(Detected { label, family: Some(family) })
    });
    of_family.or_else(|| shared::CLASSES.iter().find_map(begins).map(|label| Detected { label, family: None }))
}

/// The family of a U-Net in a single file.
pub fn of_unet(unet: &UnetShape) -> FamilyRef {
    let runs = FAMILIES.iter().copied().filter(|family| family.runs());
    runs.into_iter().find(|family| family.has_unet(unet)).unwrap_or(sd::SD)
}

/// The classes of all pipelines that run.
pub fn pipeline_classes() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.classes().iter().copied())
}

/// The prefixes in single files of the components with this folder and kind, in all families that run. The empty prefix is
/// last, since it fits inside of others.
pub fn prefixes(folder: &str, kind: ComponentKind) -> Vec<&'static str> {
    prefixes_of(|part| part.folder == folder && part.kind == kind)
}

/// The prefixes in single files of all components of this kind, as [`prefixes`].
pub fn prefixes_of_kind(kind: ComponentKind) -> Vec<&'static str> {
    prefixes_of(|part| part.kind == kind)
}

fn prefixes_of(which: impl Fn(&Component) -> bool) -> Vec<&'static str> {
    let parts = FAMILIES.iter().flat_map(|family| family.components()).filter(|part| which(part));
    let mut all: Vec<&'static str> = Vec::new();
    for prefix in parts.flat_map(|part| part.prefixes) {
        if !all.contains(prefix) {
            all.push(prefix);
        }
    }
    all.sort_by_key(|prefix| prefix.is_empty());
    all
}

/// The text encoders of all families that run, by folder and kind, each once.
pub fn text_components() -> Vec<&'static Component> {
    let mut all: Vec<&'static Component> = Vec::new();
    for part in FAMILIES.iter().flat_map(|family| family.components()).filter(|part| part.kind.is_text_encoder()) {
        if !all.iter().any(|known| known.folder == part.folder && known.kind == part.kind) {
            all.push(part);
        }
    }
    all
}

/// The models that run, for messages.
pub fn runnable_labels() -> &'static str {
    "Stable Diffusion 1, 2, XL and 3, FLUX.1, Chroma, FLUX.2 klein, Z-Image and Qwen-Image"
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_weights::MapSource;

    use super::*;
    use crate::held::held_networks;

    /// A file with matrices of these names; `columns` are those of all.
    fn file(names: &[&str], columns: usize) -> MapSource {
        let tensor = Tensor::zeros((1, columns), DType::F32, &Device::Cpu).unwrap();
        names.iter().map(|name| (name.to_string(), tensor.clone())).collect()
    }

    fn label(names: &[&str]) -> Option<&'static str> {
        detect(&file(names, 1)).map(|found| found.label)
    }

    fn marks() -> impl Iterator<Item = &'static Mark> {
        FAMILIES.iter().flat_map(|family| family.marks()).chain(shared::MARKS)
    }

    #[test]
    fn every_mark_is_recognized_with_and_without_a_prefix() {
        for mark in marks() {
            let names = [mark.names, mark.parts].concat();
            let prefixed: Vec<String> = names.iter().map(|name| format!("model.diffusion_model.{name}")).collect();
            let prefixed: Vec<&str> = prefixed.iter().map(String::as_str).collect();
            for names in [names.as_slice(), &prefixed] {
                let found = detect(&file(names, 1)).map(|found| found.label);
                assert_eq!(found, Some(mark.label), "{names:?}");
            }
        }
    }

    #[test]
    fn ids_are_unique_and_labels_have_articles() {
        let mut ids: Vec<&str> = FAMILIES.iter().map(|family| family.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), FAMILIES.len());
        for mark in marks() {
            assert!(mark.label.starts_with("a ") || mark.label.starts_with("an "), "{}", mark.label);
        }
        for family in FAMILIES {
            assert_eq!(family.runs(), !family.components().is_empty(), "{}", family.label());
            assert_eq!(family.runs(), !family.classes().is_empty(), "{}", family.label());
            assert_eq!(family.runs(), family.derived_config().is_some(), "{}", family.label());
            assert!(
                family.runs() || !family.marks().is_empty() && !family.class_prefixes().is_empty(),
                "{}",
                family.label()
            );
        }
    }

    #[test]
    fn networks_derived_from_flux_are_not_flux() {
        let flux = ["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"];
        assert_eq!((label(&flux), denoiser_label(&file(&flux, 1))), (None, Some("a FLUX.1 transformer")), "it runs");
        let chroma = [&flux[..], &["distilled_guidance_layer.in_proj.weight"]].concat();
        assert_eq!(
            (label(&chroma), denoiser_label(&file(&chroma, 1))),
            (None, Some("a Chroma transformer")),
            "it runs"
        );
        let video = [&flux[..], &["txt_in.individual_token_refiner.blocks.0.norm1.weight"]].concat();
        assert_eq!(label(&video), Some("a HunyuanVideo transformer"));
    }

    #[test]
    fn files_of_z_image_and_qwen3_are_not_those_of_others() {
        let lumina = ["cap_embedder.1.weight", "noise_refiner.0.attention_norm1.weight"];
        assert_eq!(label(&lumina), Some("a Lumina 2 transformer"));
        let z_image = [&lumina[..], &["cap_pad_token"]].concat();
        assert_eq!((label(&z_image), denoiser_label(&file(&z_image, 1))), (None, Some("a Z-Image transformer")));
        let model = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"];
        assert_eq!(label(&model), Some("a language model"));
        assert_eq!(label(&[&model[..], &["model.layers.0.self_attn.q_norm.weight"]].concat()), None);
        let vision = [&model[..], &["visual.blocks.0.attn.qkv.weight"]].concat();
        assert_eq!(label(&vision), Some("a Qwen-VL text encoder"));
        let whole = [
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.mlp.gate_proj.weight",
        ];
        assert_eq!(label(&[&vision[..], &whole[..]].concat()), None, "it runs");
        let gguf = ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_gate.weight"];
        assert_eq!(label(&gguf), Some("a language model"));
        assert_eq!(label(&[&gguf[..], &["blk.0.attn_q.bias"]].concat()), None, "it runs");
    }

    #[test]
    fn autoencoders_of_frames_run_if_they_have_the_dimensions_of_qwen_images() {
        let wan = ["decoder.middle.0.residual.0.gamma", "decoder.head.0.gamma"];
        let with = |name: &str| label(&[&wan[..], &[name]].concat());
        assert_eq!(with("encoder.downsamples.0.residual.2.weight"), None, "it runs");
        let nested = "encoder.downsamples.0.downsamples.0.residual.2.weight";
        assert_eq!(with(nested), Some("an autoencoder of Wan or Qwen-Image"), "Wan 2.2");
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
            assert_eq!(known_lora(&keys), None, "{names:?}");
        }
        for class in ["StableDiffusionPipeline", "StableDiffusionXLPipeline", "UNet2DConditionModel", "CLIPTextModel"] {
            assert_eq!(class_label(class), None, "{class}");
        }
        for class in pipeline_classes() {
            assert_eq!(class_label(class), None, "{class}");
        }
    }

    #[test]
    fn classes_and_loras_have_a_family() {
        let class = |name| class_label(name).map(|found| found.label);
        assert_eq!(class("FluxPipeline"), None, "it runs");
        assert_eq!(class("FluxFillPipeline"), None, "it runs");
        assert_eq!(class("FluxPriorReduxPipeline"), Some("a FLUX.1 model"));
        assert_eq!(class("Flux2Pipeline"), Some("a FLUX.2 dev model"));
        assert_eq!(class("ZImageOmniPipeline"), Some("a Z-Image model for several images (Omni)"));
        assert_eq!(class("SD3Transformer2DModel"), Some("a Stable Diffusion 3 transformer"));
        assert_eq!(class("StableDiffusion3ControlNetPipeline"), Some("a Stable Diffusion 3 model"));
        assert_eq!(class("Qwen2_5_VLForConditionalGeneration"), Some("a Qwen-VL text encoder"));
        let lora = |name: &str| known_lora(&[name.to_string()]).map(|family| family.label());
        assert_eq!(class("QwenImagePipeline"), None, "it runs");
        assert_eq!(class("QwenImageEditPlusPipeline"), None, "it runs");
        assert_eq!(class("QwenImageEditInpaintPipeline"), Some("a Qwen-Image-Edit model of another kind"));
        assert_eq!(class("QwenImageControlNetPipeline"), Some("a Qwen-Image model"));
        for runs in [
            "transformer_blocks.0.txt_mlp.net.0.proj.lora_A.weight",
            "lora_unet_double_blocks_0_img_attn_proj.lora_up.weight",
            "transformer.transformer_blocks.0.attn.add_k_proj.lora_A.weight",
            "diffusion_model.layers.0.attention.to_k.lora_A.weight",
        ] {
            assert_eq!(lora(runs), None, "{runs}");
        }
    }

    #[test]
    fn a_file_names_the_networks_that_it_holds() {
        let names = [
            "text_encoders.clip_l.transformer.text_model.embeddings.token_embedding.weight",
            "text_encoders.t5xxl.transformer.shared.weight",
            "text_encoders.unheard_of.weight",
            "vae.decoder.conv_in.weight",
        ];
        let held = held_networks(&file(&names, 1));
        assert_eq!(held, ["a CLIP-L text encoder", "a T5 text encoder", "a text encoder", "an autoencoder (VAE)"]);
    }

    #[test]
    fn prefixes_of_all_families_are_joined() {
        assert_eq!(prefixes("unet", ComponentKind::Unet), ["model.diffusion_model.", "diffusion_model.", "unet.", ""]);
        assert_eq!(prefixes("text_encoder", ComponentKind::Clip).last(), Some(&""));
        assert_eq!(
            text_components().iter().map(|text| text.folder).collect::<Vec<_>>(),
            [
                "text_encoder",
                "text_encoder_2",
                "byte_encoder",
                "text_encoder",
                "text_encoder",
                "text_encoder_2",
                "text_encoder_3"
            ]
        );
    }
}
