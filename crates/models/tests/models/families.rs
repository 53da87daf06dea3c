//! Files and folders of families that Kiln does not run are named, and pipelines that have the parts of a model open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_models::{
    ControlFile, DTypeChoice, FileKind, FileReport, Inspected, ModelFolder, ModelOptions, convert, foreign_lora,
    inspect,
};
use kiln_testkit::{fixtures, shared_data, write_tensors};

const ENDING: &str = ": not supported yet; Kiln runs Stable Diffusion 1, 2, XL and 3, FLUX.1, Chroma, FLUX.2 klein, Z-Image and Qwen-Image";

/// A file with small matrices of these names.
fn file(folder: &Path, name: &str, tensors: &[&str]) -> PathBuf {
    let zeros = || Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let tensors: BTreeMap<String, Tensor> = tensors.iter().map(|name| (name.to_string(), zeros())).collect();
    let path = folder.join(name);
    write_tensors(&tensors, &path);
    path
}

fn report(path: &Path) -> FileReport {
    match inspect(path, DTypeChoice::Auto).unwrap() {
        Inspected::File(report) => *report,
        other => panic!("{}: {other:?}", path.display()),
    }
}

fn refusal(path: &Path) -> String {
    ModelFolder::open(path).unwrap_err().to_string()
}

/// Networks of other families, with the tensors by which they are known.
const NETWORKS: &[(&str, &[&str])] = &[
    ("a Lumina 2 transformer", &["cap_embedder.1.weight", "noise_refiner.0.attention_norm1.weight"]),
    ("an AuraFlow transformer", &["double_layers.0.attn.w1q.weight"]),
    ("a PixArt transformer", &["t_block.1.weight", "y_embedder.y_proj.fc1.weight"]),
    ("a Sana transformer", &["blocks.0.mlp.inverted_conv.conv.weight", "y_embedder.y_proj.fc1.weight"]),
    ("a Wan transformer", &["head.modulation", "blocks.0.self_attn.q.weight"]),
    ("an LTX-Video transformer", &["patchify_proj.weight", "adaln_single.linear.weight"]),
    ("a Stable Video Diffusion U-Net", &["input_blocks.1.0.time_stack.emb_layers.1.weight"]),
    ("a Stable Cascade network", &["clip_txt_mapper.weight"]),
    ("a Kandinsky 2 U-Net", &["add_embedding.image_norm.weight"]),
];

#[test]
fn networks_of_other_families_are_named_where_they_are_opened_and_inspected() {
    let folder = tempfile::tempdir().unwrap();
    for (label, tensors) in NETWORKS {
        for prefix in ["", "model.diffusion_model."] {
            let names: Vec<String> = tensors.iter().map(|name| format!("{prefix}{name}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let path = file(folder.path(), "a.safetensors", &names);
            assert_eq!(report(&path).kind.label(), *label);
            let expected = format!("{}: is {label}{ENDING}", path.display());
            assert_eq!(refusal(&path), expected);
            let options = ModelOptions { unet: Some(path.clone()), ..ModelOptions::default() };
            let as_unet = ModelFolder::open_with(&fixtures("models/sd1"), &options).unwrap_err();
            assert_eq!(as_unet.to_string(), expected, "as a U-Net");
            let options = ModelOptions { text_encoders: vec![path.clone()], ..ModelOptions::default() };
            let as_text = ModelFolder::open_with(&fixtures("models/sd1"), &options).unwrap_err();
            assert_eq!(as_text.to_string(), expected, "as a text encoder");
            let out = folder.path().join("out");
            let proceed = || std::ops::ControlFlow::Continue(());
            let converted =
                convert(&path, &out, &ModelOptions::default(), "auto".parse().unwrap(), false, &proceed).unwrap_err();
            assert_eq!(converted.to_string(), expected, "converted");
        }
    }
}

#[test]
fn control_networks_of_other_families_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let path = file(folder.path(), "a.safetensors", &["controlnet_x_embedder.weight", "controlnet_blocks.0.weight"]);
    let error = ControlFile::open(&path, &model).err().unwrap().to_string();
    let refused = "but the model sd1 is Stable Diffusion of another shape: give a control network for that family";
    assert_eq!(error, format!("{}: is a FLUX.1 ControlNet, {refused}", path.display()));
    std::fs::write(folder.path().join("config.json"), r#"{"_class_name": "SD3ControlNetModel"}"#).unwrap();
    let error = ControlFile::open(folder.path(), &model).err().unwrap().to_string();
    assert!(error.ends_with(&format!("is a Stable Diffusion 3 ControlNet, {refused}")), "{error}");
    std::fs::write(folder.path().join("config.json"), r#"{"_class_name": "FluxMultiControlNetModel"}"#).unwrap();
    let error = ControlFile::open(folder.path(), &model).err().unwrap().to_string();
    assert!(error.contains("is several FLUX.1 ControlNets in one: not supported yet"), "{error}");
}

#[test]
fn encoders_and_autoencoders_alone_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, tensors) in [
        (FileKind::TextEncoder, &["text_model.embeddings.token_embedding.weight"][..]),
        (FileKind::TextEncoder, &["embeddings.token_embedding.weight", "final_layer_norm.weight"]),
        (FileKind::Qwen3, &["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.weight"]),
        (FileKind::Vae, &["decoder.conv_in.weight", "decoder.conv_norm_out.weight"]),
        (FileKind::QwenVl, &["blk.0.attn_q.bias", "blk.0.ffn_gate.weight", "token_embd.weight"]),
        (FileKind::Vae, &["decoder.conv_in.weight", "decoder.norm_out.weight"]),
        (FileKind::Vae, &["decoder.conv1.weight", "decoder.head.0.gamma"]),
    ] {
        let path = file(folder.path(), "a.safetensors", tensors);
        assert_eq!(report(&path).kind, kind, "{tensors:?}");
        assert!(refusal(&path).contains(kind.label()), "{}", refusal(&path));
    }
}

#[test]
fn all_in_one_files_name_the_encoders_that_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(
        folder.path(),
        "a.safetensors",
        &[
            "model.diffusion_model.double_layers.0.attn.w1q.weight",
            "text_encoders.clip_g.transformer.text_model.embeddings.token_embedding.weight",
            "text_encoders.clip_l.transformer.text_model.embeddings.token_embedding.weight",
            "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight",
            "first_stage_model.decoder.conv_in.weight",
        ],
    );
    let held = ["a CLIP-L text encoder", "a CLIP-G text encoder", "a T5 text encoder", "an autoencoder (VAE)"];
    assert_eq!(report(&path).held, held);
    let [l, g, t5, vae] = held;
    let expected = format!("is an AuraFlow transformer, with {l}, {g}, {t5} and {vae}{ENDING}");
    assert!(refusal(&path).ends_with(&expected), "{}", refusal(&path));
}

#[test]
fn pipelines_of_other_families_are_named_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    for (class, label) in [
        ("FluxPriorReduxPipeline", "a FLUX.1 model"),
        ("Flux2Pipeline", "a FLUX.2 dev model"),
        ("ZImageOmniPipeline", "a Z-Image model for several images (Omni)"),
        ("QwenImageEditInpaintPipeline", "a Qwen-Image-Edit model of another kind"),
        ("PixArtSigmaPipeline", "a PixArt model"),
        ("AuraFlowPipeline", "an AuraFlow model"),
        ("Lumina2Pipeline", "a Lumina model"),
        ("SanaPipeline", "a Sana model"),
        ("WanPipeline", "a Wan model"),
        ("LTXPipeline", "an LTX-Video model"),
        ("StableVideoDiffusionPipeline", "a Stable Video Diffusion model"),
        ("KandinskyV22Pipeline", "a Kandinsky model"),
        ("StableCascadeDecoderPipeline", "a Stable Cascade model"),
    ] {
        let path = folder.path().join(class);
        std::fs::create_dir_all(path.join("transformer")).unwrap();
        std::fs::write(path.join("model_index.json"), format!(r#"{{"_class_name": "{class}"}}"#)).unwrap();
        file(&path, "transformer/a.safetensors", &["head.modulation", "blocks.0.self_attn.q.weight"]);
        std::fs::write(path.join("transformer/config.json"), r#"{"_class_name": "WanTransformer3DModel"}"#).unwrap();
        assert_eq!(refusal(&path), format!("{}: is {label}{ENDING}", path.display()));
        let Inspected::List(list) = inspect(&path, DTypeChoice::Auto).unwrap() else { panic!("{class}: a list") };
        assert_eq!(list.pipeline.map(|pipeline| pipeline.label()), Some(label));
        assert_eq!(list.entries.len(), 1);
        assert_eq!(list.entries[0].what, "a Wan transformer: not supported yet");
    }
    let network = folder.path().join("WanPipeline/transformer");
    assert_eq!(refusal(&network), format!("{}: is a Wan transformer{ENDING}", network.display()));
    let options = ModelOptions { unet: Some(network.clone()), ..ModelOptions::default() };
    let as_unet = ModelFolder::open_with(&fixtures("models/sd1"), &options).unwrap_err();
    assert_eq!(as_unet.to_string(), format!("{}: is a Wan transformer{ENDING}", network.display()));
    let Inspected::List(list) = inspect(folder.path(), DTypeChoice::Auto).unwrap() else { panic!("a list") };
    assert!(list.pipeline.is_none() && list.entries.iter().all(|entry| entry.what.ends_with("not supported yet")));
}

#[test]
fn loras_of_other_families_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (family, name) in [
        ("Wan", "diffusion_model.blocks.0.self_attn.q.lora_A.weight"),
        ("AuraFlow", "transformer.joint_transformer_blocks.0.attn.to_q.lora_A.weight"),
    ] {
        let path = file(folder.path(), "lora.safetensors", &[name]);
        let found = report(&path);
        assert_eq!((found.kind, found.lora.unwrap().base.as_deref()), (FileKind::Lora, Some(family)), "{name}");
        let expected = format!("{}: is a LoRA for {family}{ENDING}", path.display());
        assert_eq!(foreign_lora(&path).map(|error| error.to_string()), Some(expected));
        let Inspected::List(list) = inspect(folder.path(), DTypeChoice::Auto).map_or_else(
            |error| panic!("{error}"),
            |found| match found {
                Inspected::File(_) => {
                    file(folder.path(), "other.safetensors", &["x"]);
                    inspect(folder.path(), DTypeChoice::Auto).unwrap()
                }
                other => other,
            },
        ) else {
            panic!("a list")
        };
        let expected = format!("a LoRA for {family}: not supported yet");
        assert_eq!(list.entries[0].what, expected);
    }
    let own = file(folder.path(), "own.safetensors", &["lora_unet_mid_block_attentions_0_proj_in.lora_up.weight"]);
    assert!(foreign_lora(&own).is_none());
}

/// Pipelines of diffusers with a control network, an image or a mask have all parts of a model.
#[test]
fn pipelines_with_the_parts_of_a_model_are_models() {
    let folder = tempfile::tempdir().unwrap();
    for (model, classes) in [
        (
            "sd1",
            &[
                "StableDiffusionControlNetPipeline",
                "StableDiffusionControlNetImg2ImgPipeline",
                "StableDiffusionImg2ImgPipeline",
                "StableDiffusionInpaintPipeline",
                "StableDiffusionPAGPipeline",
            ][..],
        ),
        (
            "sdxl",
            &[
                "StableDiffusionXLControlNetPipeline",
                "StableDiffusionXLImg2ImgPipeline",
                "StableDiffusionXLInpaintPipeline",
                "StableDiffusionXLControlNetInpaintPipeline",
                "StableDiffusionXLPAGInpaintPipeline",
            ],
        ),
    ] {
        let from = fixtures("models").join(model);
        let index = std::fs::read_to_string(from.join("model_index.json")).unwrap();
        let usual = ModelFolder::open(&from).unwrap();
        for class in classes {
            let to = folder.path().join(class);
            for name in ["scheduler", "text_encoder", "text_encoder_2", "unet", "vae"] {
                let Ok(entries) = std::fs::read_dir(from.join(name)) else { continue };
                std::fs::create_dir_all(to.join(name)).unwrap();
                for entry in
                    entries.map(Result::unwrap).filter(|entry| entry.path().extension().is_some_and(|e| e == "json"))
                {
                    std::fs::copy(entry.path(), to.join(name).join(entry.file_name())).unwrap();
                }
            }
            let mut json: serde_json::Value = serde_json::from_str(&index).unwrap();
            json["_class_name"] = (*class).into();
            json["controlnet"] = serde_json::json!(["diffusers", "ControlNetModel"]);
            std::fs::write(to.join("model_index.json"), json.to_string()).unwrap();
            let opened = ModelFolder::open(&to).unwrap_or_else(|error| panic!("{class}: {error}"));
            assert_eq!((opened.family(), opened.defaults()), (usual.family(), usual.defaults()), "{class}");
        }
        // Its parts decide: without one it is none.
        std::fs::remove_dir_all(folder.path().join(classes[0]).join("vae")).unwrap();
        let error = refusal(&folder.path().join(classes[0]));
        assert!(error.contains("vae") && error.contains("config.json"), "{error}");
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_pipelines_of_all_families_open() {
    for (name, family) in [
        ("sd3", "sd3"),
        ("sd35_medium", "sd3"),
        ("flux_dev", "flux"),
        ("flux_schnell", "flux"),
        ("flux2_klein", "flux2"),
        ("zimage", "z_image"),
    ] {
        let path = shared_data("families/models").join(name);
        assert_eq!(ModelFolder::open(&path).unwrap().family().id(), family, "{name}");
        let Inspected::Folder(found) = inspect(&path, DTypeChoice::Auto).unwrap() else { panic!("{name}: a folder") };
        assert!(found.components.iter().all(|component| component.problems.is_empty()), "{name}");
    }
    for (name, family) in [("flux_kohya", "FLUX.1"), ("sd3_peft", "Stable Diffusion 3"), ("zimage_comfy", "Z-Image")] {
        let found = report(&shared_data(&format!("families/lora/{name}.safetensors")));
        assert_eq!((found.kind, found.lora.unwrap().base.as_deref()), (FileKind::Lora, Some(family)));
    }
    let whole = report(&shared_data("families/files/sd3_all_in_one.safetensors"));
    assert_eq!((whole.kind, whole.model.map(|model| model.kind.id)), (FileKind::Checkpoint, Some("sd3_other")));
}
