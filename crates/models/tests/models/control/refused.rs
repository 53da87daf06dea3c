//! Files and folders that are refused, each by its name and a reason.

use std::path::{Path, PathBuf};

use kiln_models::ControlFile;
use kiln_testkit::{TinyAdapter, TinyControl, TinyLllite, TinyUnion, write_tensors};
use serde_json::{Value, json};

use super::{control_lora, model, tensors, zeros};

/// A file or a folder that is refused, and parts of its message.
type Refused = (PathBuf, Vec<&'static str>);

/// Damaged files, and other kinds of files.
fn other_files(folder: &Path) -> Vec<Refused> {
    let path = |name: &str| folder.join(name);
    let bytes = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        (path(name), Vec::new())
    };
    write_tensors(&tensors("sd1"), &path("whole.safetensors"));
    let whole = std::fs::read(path("whole.safetensors")).unwrap();
    let mut all = vec![
        (path("missing.safetensors"), vec!["not found", "`net`"]),
        bytes("empty.safetensors", &[]),
        bytes("text.safetensors", b"<!DOCTYPE html><html>not a file</html>"),
        bytes("cut.safetensors", &whole[..whole.len() / 2]),
        bytes("header.safetensors", &whole[..200]),
        bytes("long.safetensors", &[&u64::MAX.to_le_bytes()[..], &whole[8..]].concat()),
        bytes("zip.pth", b"PK\x03\x04 and nothing else"),
        bytes("pickle.pth", b"\x80\x02}q\x00."),
    ];
    for (name, names, says) in [
        ("lora", &["lora_unet_mid_block.lora_up.weight"][..], "a LoRA"),
        ("unet", &["conv_in.weight", "time_embedding.linear_1.weight"], "a U-Net"),
        ("vae", &["decoder.conv_in.weight", "decoder.conv_norm_out.weight"], "an autoencoder"),
        (
            "adapter",
            &["adapter.conv_in.weight", "adapter.body.0.resnets.0.block1.weight"],
            "`adapter.body.0.resnets.0.block2",
        ),
        ("ip", &["image_proj.proj.weight", "ip_adapter.1.to_k_ip.weight"], "an IP-Adapter"),
        ("control_lora", &["lora_controlnet", "input_hint_block.0.weight"], "`input_hint_block.4.weight`"),
        ("lllite", &["lllite_unet_input_blocks_4_1.down.0.weight"], "LLLite"),
        (
            "union",
            &["controlnet_cond_embedding.conv_in.weight", "control_add_embedding.linear_1.bias"],
            "`down_blocks.0",
        ),
        ("words", &["emb_params"], "an embedding"),
        ("upscaler", &["conv_first.weight", "conv_last.weight"], "an upscaler"),
        ("checkpoint", &["model.diffusion_model.input_blocks.0.0.weight"], "a whole model"),
        ("unknown", &["x", "y"], "an unknown kind of file"),
        ("hint", &["controlnet_cond_embedding.conv_in.weight"], "without `down_blocks.0"),
    ] {
        let path = path(&format!("{name}.safetensors"));
        write_tensors(&names.iter().map(|name| (name.to_string(), zeros(&[4, 4]))).collect(), &path);
        all.push((path, vec![says]));
    }
    all
}

/// Folders whose configuration is missing, impossible, or not that of their weights.
fn folders(folder: &Path) -> Vec<Refused> {
    let full = TinyControl::full(0);
    let path = |name: &str| folder.join(name);
    std::fs::create_dir(path("nothing")).unwrap();
    std::fs::create_dir(path("weightless")).unwrap();
    std::fs::write(path("weightless").join("config.json"), full.config("sd1").to_string()).unwrap();
    full.write("sd1", &path("json"));
    std::fs::write(path("json").join("config.json"), "{").unwrap();
    let mut all = vec![
        (path("nothing"), vec!["config.json"]),
        (path("weightless"), vec!["diffusion_pytorch_model"]),
        (path("json"), vec!["config.json"]),
    ];
    for (name, key, value, says) in [
        ("unet", "_class_name", json!("UNet2DConditionModel"), vec!["UNet2DConditionModel"]),
        ("union", "_class_name", json!("ControlNetUnionModel"), vec!["`num_trans_channel` is 320, expected 8"]),
        ("classless", "_class_name", Value::Null, vec!["`_class_name` is null"]),
        ("channels", "conditioning_channels", json!(0), vec!["`conditioning_channels` is 0"]),
        ("four", "conditioning_channels", json!(4), vec!["controlnet_cond_embedding.conv_in.weight"]),
        ("order", "controlnet_conditioning_channel_order", json!("gbr"), vec!["channel_order` is gbr"]),
        ("pool", "global_pool_conditions", json!("yes"), vec!["config.json"]),
        ("huge", "layers_per_block", json!(1_000_000_000), vec!["`layers_per_block` is 1000000000"]),
        ("widths", "conditioning_embedding_out_channels", json!([4, 6, 8, 9]), vec!["controlnet_cond_embedding"]),
        ("levels", "block_out_channels", json!([8, 12, 20]), vec!["`down_block_types`"]),
        ("wide", "block_out_channels", json!([16, 24, 40, 40]), vec!["skip connections", "sd1"]),
        ("text", "cross_attention_dim", json!(768), vec!["text of 768 channels", "text of 32"]),
    ] {
        full.write("sd1", &path(name));
        let mut config = full.config("sd1");
        config[key] = value;
        std::fs::write(path(name).join("config.json"), config.to_string()).unwrap();
        all.push((path(name), says));
    }
    all
}

/// Networks of other families, and those whose tensors are missing or have other shapes.
fn networks(folder: &Path) -> Vec<Refused> {
    let path = |name: &str| folder.join(name);
    let mut all = Vec::new();
    for (kind, says) in [
        ("sdxl", vec!["Stable Diffusion XL", "the model sd1 is"]),
        ("sd2v", vec!["is a ControlNet for", "the model sd1"]),
    ] {
        TinyControl::full(0).write(kind, &path(kind));
        write_tensors(&tensors(kind), &path(&format!("{kind}.safetensors")));
        all.push((path(kind), says.clone()));
        all.push((path(&format!("{kind}.safetensors")), says));
    }
    for (i, key) in [
        "controlnet_down_blocks.4.weight",
        "controlnet_mid_block.bias",
        "controlnet_cond_embedding.conv_out.weight",
        "controlnet_cond_embedding.blocks.0.weight",
        "time_embedding.linear_2.weight",
        "down_blocks.1.resnets.0.conv2.weight",
        "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v.weight",
        "mid_block.resnets.0.norm1.weight",
    ]
    .into_iter()
    .enumerate()
    {
        let mut without = tensors("sd1");
        let shape: Vec<usize> = without.remove(key).unwrap().dims().iter().map(|dim| dim + 1).collect();
        write_tensors(&without, &path(&format!("without_{i}.safetensors")));
        all.push((path(&format!("without_{i}.safetensors")), vec![key]));
        without.insert(key.into(), zeros(&shape));
        write_tensors(&without, &path(&format!("wrong_{i}.safetensors")));
        all.push((path(&format!("wrong_{i}.safetensors")), vec![key]));
    }
    all
}

/// T2I-Adapters, Union networks and control LoRAs that are damaged or for other families.
fn other_networks(folder: &Path) -> Vec<Refused> {
    let path = |name: &str| folder.join(name);
    let mut all = Vec::new();
    let xl = TinyAdapter::new("full_xl", 0);
    xl.write(&path("xl"));
    all.push((path("xl"), vec!["a T2I-Adapter for Stable Diffusion XL", "the model sd1 is"]));
    write_tensors(&xl.original(), &path("xl.safetensors"));
    all.push((path("xl.safetensors"), vec!["a T2I-Adapter for Stable Diffusion XL", "the model sd1 is"]));
    for (name, form, key) in [
        ("full", "full", "adapter.body.2.in_conv.weight"),
        ("light", "light", "adapter.body.3.out_conv.bias"),
        ("gray", "gray", "adapter.body.1.resnets.1.block2.weight"),
    ] {
        let mut tensors = TinyAdapter::new(form, 0).tensors();
        let shape: Vec<usize> = tensors.remove(key).unwrap().dims().iter().map(|dim| dim + 1).collect();
        write_tensors(&tensors, &path(&format!("{name}_without.safetensors")));
        all.push((path(&format!("{name}_without.safetensors")), vec![key]));
        tensors.insert(key.into(), zeros(&shape));
        write_tensors(&tensors, &path(&format!("{name}_wrong.safetensors")));
        all.push((path(&format!("{name}_wrong.safetensors")), vec![key]));
    }
    for (name, key, value, says) in [
        ("form", "adapter_type", json!("style"), vec!["`adapter_type` is style"]),
        ("image", "in_channels", json!(4), vec!["`in_channels` is 4"]),
        ("levels", "channels", json!([8, 12]), vec!["maps of 8, 12 channels", "the model sd1 is"]),
        ("downscale", "downscale_factor", json!(16), vec!["the first one of 16 pixels"]),
        ("layers", "num_res_blocks", json!(3), vec!["adapter.body.0.resnets.2"]),
        ("class", "_class_name", json!("MultiAdapter"), vec!["MultiAdapter", "T2IAdapter"]),
    ] {
        TinyAdapter::new("full", 0).write(&path(name));
        let mut config = TinyAdapter::new("full", 0).config();
        config[key] = value;
        std::fs::write(path(name).join("config.json"), config.to_string()).unwrap();
        all.push((path(name), says));
    }
    // The model of Stable Diffusion 1 has other layers.
    TinyLllite { number: 0 }.write(&path("lllite.safetensors"));
    all.push((path("lllite.safetensors"), vec!["a ControlNet-LLLite that does not fit the model sd1", "channels"]));
    TinyUnion.write("sdxl", &path("union"));
    all.push((path("union"), vec!["Stable Diffusion XL", "the model sd1 is"]));
    for (name, changes, says) in [
        (
            "lora",
            vec![("input_blocks.1.0.in_layers.2.down", vec![2, 9, 3, 3])],
            vec!["`input_blocks.1.0.in_layers.2.up`", "(2, 81)", "a matrix (8, 72)"],
        ),
        ("lora_xl", vec![("label_emb.0.0.bias", vec![32])], vec!["a control LoRA for Stable Diffusion XL"]),
        (
            "lora_hint",
            vec![("input_hint_block.14.weight", vec![8, 9, 3, 3])],
            vec!["controlnet_cond_embedding.conv_out"],
        ),
    ] {
        let mut tensors = control_lora("sd1");
        tensors.extend(changes.into_iter().map(|(key, shape)| (key.to_string(), zeros(&shape))));
        write_tensors(&tensors, &path(&format!("{name}.safetensors")));
        all.push((path(&format!("{name}.safetensors")), says));
    }
    all
}

#[test]
fn other_files_are_refused_by_name() {
    let model = model("sd1");
    let mut count = 0;
    for make in [other_files, folders, networks, other_networks] {
        let folder = tempfile::tempdir().unwrap();
        for (path, says) in make(folder.path()) {
            let message = match ControlFile::open(&path, &model) {
                Ok(_) => panic!("{} was taken", path.display()),
                Err(error) => error.to_string(),
            };
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            for part in says.into_iter().chain([name.as_str()]) {
                assert!(message.contains(part), "{name}: `{part}` is not in: {message}");
            }
            count += 1;
        }
    }
    assert!(count > 65, "{count}");
}

#[test]
fn a_network_for_xl_needs_a_model_of_xl() {
    let folder = tempfile::tempdir().unwrap();
    TinyControl::full(0).write("sd1", folder.path());
    let message = ControlFile::open(folder.path(), &model("sdxl")).map(drop).unwrap_err().to_string();
    for part in ["is a ControlNet for", "the model sdxl is Stable Diffusion XL", "pooled text of"] {
        assert!(message.contains(part), "{message}");
    }
    // The small form has no transformers, so that the text's width does not show; its embedding of sizes does.
    let small = tempfile::tempdir().unwrap();
    TinyControl { number: 0, is_small: true }.write("sdxl", small.path());
    assert!(ControlFile::open(small.path(), &model("sdxl")).is_ok());
    assert!(ControlFile::open(small.path(), &model("sd1")).is_err());
}
