//! Files of ControlNets: the names and types that they come in, and those that are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_models::{ControlFile, ControlNetwork, ModelFolder};
use kiln_testkit::{TinyControl, fixtures, write_tensors};
use kiln_unet::ControlConfig;
use kiln_weights::ParamSource;
use kiln_weights::ldm::{UnetLevel, UnetShape};
use serde_json::{Value, json};

type Tensors = BTreeMap<String, Tensor>;

fn model(kind: &str) -> ModelFolder {
    ModelFolder::open(&fixtures(&format!("models/{kind}"))).unwrap()
}

fn tensors(kind: &str) -> Tensors {
    TinyControl::full(0).tensors(kind)
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

/// The tensors of `kind` under the names of ControlNet's authors.
fn original(kind: &str) -> Tensors {
    let depths: &[usize] = if kind == "sdxl" { &[0, 2, 2] } else { &[1, 1, 1, 0] };
    let shape = UnetShape {
        in_channels: 4,
        out_channels: 4,
        down: depths.iter().map(|&depth| UnetLevel { channels: 8, depths: vec![depth] }).collect(),
        middle: Some(1),
        up: Vec::new(),
        context_dim: 32,
        linear_projection: false,
        added_dim: None,
        guidance_dim: None,
    };
    let names = shape.control_names();
    let stored = |(key, tensor): (String, Tensor)| (names.place(&key).unwrap().name, tensor);
    tensors(kind).into_iter().map(stored).collect()
}

fn prefixed(tensors: Tensors, prefix: &str) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
}

fn values(source: &dyn ParamSource, key: &str) -> Vec<f32> {
    source.data(key).unwrap().unwrap().to_f32().unwrap()
}

#[test]
fn files_are_known_by_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, tensors: &Tensors| {
        let path = folder.path().join(name);
        write_tensors(tensors, &path);
        path
    };
    for kind in ["sd1", "sdxl"] {
        let config = ControlConfig::from_json(&TinyControl::full(0).config(kind).to_string()).unwrap();
        let half = |dtype: DType| {
            let cast = |(name, tensor): (String, Tensor)| (name, tensor.to_dtype(dtype).unwrap());
            original(kind).into_iter().map(cast).collect::<Tensors>()
        };
        let names = original(kind);
        for name in [
            "input_hint_block.0.weight",
            "input_hint_block.14.bias",
            "zero_convs.2.0.weight",
            "middle_block_out.0.weight",
            "input_blocks.2.0.op.weight",
            "middle_block.1.norm.weight",
        ] {
            assert!(names.contains_key(name), "{kind}: {name}");
        }
        let mut whole = prefixed(original(kind), "control_model.");
        whole.insert("model.diffusion_model.input_blocks.0.0.weight".into(), zeros(&[8, 4, 3, 3]));
        let as_folder = folder.path().join(format!("{kind}-folder"));
        TinyControl::full(0).write(kind, &as_folder);
        let files = [
            as_folder,
            write(&format!("{kind}-diffusers.safetensors"), &tensors(kind)),
            write(&format!("{kind}-original.safetensors"), &original(kind)),
            write(&format!("{kind}-prefixed.safetensors"), &prefixed(original(kind), "control_model.")),
            write(&format!("{kind}-whole.safetensors"), &whole),
            write(&format!("{kind}-f16.safetensors"), &half(DType::F16)),
            write(&format!("{kind}-bf16.safetensors"), &half(DType::BF16)),
        ];
        let model = model(kind);
        for path in files {
            let file = ControlFile::open(&path, &model).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(*file.network(), ControlNetwork::ControlNet(config.clone()), "{}", path.display());
            let (found, expected) = (file.weights(), tensors(kind));
            for key in ["conv_in.weight", "controlnet_down_blocks.3.bias", "controlnet_cond_embedding.blocks.5.weight"]
            {
                let expected: Vec<f32> = expected[key].flatten_all().unwrap().to_vec1().unwrap();
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.01 * b.abs().max(0.01);
                let found = values(found.as_ref(), key);
                assert!(found.iter().zip(&expected).all(close), "{}: {key}", path.display());
            }
        }
    }
}

/// Weights that are stored as differences are added to the U-Net's; those that the U-Net does not have stay.
#[test]
fn differences_are_added_to_the_unet() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (folder.path().join("difference.safetensors"), model("sd1"));
    let mut tensors = tensors("sd1");
    tensors.insert("difference".into(), zeros(&[1]));
    write_tensors(&tensors, &path);
    let (sum, unet) = (ControlFile::open(&path, &model).unwrap().weights(), model.files().unet().unwrap());
    let plain = |key: &str| tensors[key].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let key = "down_blocks.1.resnets.0.conv1.weight";
    let expected: Vec<f32> = plain(key).iter().zip(values(unet.as_ref(), key)).map(|(a, b)| a + b).collect();
    assert_eq!(values(sum.as_ref(), key), expected);
    let key = "controlnet_mid_block.weight";
    assert_eq!(values(sum.as_ref(), key), plain(key));
}

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
        ("adapter", &["adapter.conv_in.weight", "adapter.body.0.resnets.0.block1.weight"], "a T2I-Adapter"),
        ("ip", &["image_proj.proj.weight", "ip_adapter.1.to_k_ip.weight"], "an IP-Adapter"),
        ("control_lora", &["lora_controlnet", "input_hint_block.0.weight"], "a control LoRA"),
        ("lllite", &["lllite_unet_input_blocks_4_1.down.0.weight"], "LLLite"),
        ("union", &["controlnet_cond_embedding.conv_in.weight", "control_add_embedding.linear_1.bias"], "Union"),
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
        ("union", "_class_name", json!("ControlNetUnionModel"), vec!["ControlNetUnionModel"]),
        ("classless", "_class_name", Value::Null, vec!["`_class_name` is null"]),
        ("channels", "conditioning_channels", json!(0), vec!["`conditioning_channels` is 0"]),
        ("four", "conditioning_channels", json!(4), vec!["controlnet_cond_embedding.conv_in.weight"]),
        ("order", "controlnet_conditioning_channel_order", json!("gbr"), vec!["channel_order` is gbr"]),
        ("pool", "global_pool_conditions", json!(true), vec!["`global_pool_conditions` is true"]),
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

#[test]
fn other_files_are_refused_by_name() {
    let model = model("sd1");
    let mut count = 0;
    for make in [other_files, folders, networks] {
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
    assert!(count > 50, "{count}");
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
