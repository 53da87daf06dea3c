//! Files of ControlNets: the names and types that they come in, and those that are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_models::{ControlFile, ModelFolder};
use kiln_testkit::{TinyAdapter, TinyControl, TinyLllite, TinyUnion, fixtures, write_tensors};
use kiln_unet::{AdapterConfig, ControlConfig, ControlModelConfig};
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
            assert_eq!(*file.config(), ControlModelConfig::ControlNet(config.clone()), "{}", path.display());
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

/// A control LoRA: the tensors that a U-Net does not have, and factors of two that it has.
fn control_lora(kind: &str) -> Tensors {
    let mut lora: Tensors = original(kind)
        .into_iter()
        .filter(|(name, _)| {
            ["input_hint_block", "zero_convs", "middle_block_out"].iter().any(|part| name.starts_with(part))
        })
        .collect();
    lora.insert("lora_controlnet".into(), zeros(&[0]));
    let factor = |seed: usize, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed) % 11) as f32 * 0.01 - 0.05).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    lora.insert("input_blocks.1.0.in_layers.2.up".into(), factor(1, &[8, 2, 1, 1]));
    lora.insert("input_blocks.1.0.in_layers.2.down".into(), factor(2, &[2, 8, 3, 3]));
    lora.insert("time_embed.0.up".into(), factor(3, &[32, 2]));
    lora.insert("time_embed.0.down".into(), factor(4, &[2, 8]));
    lora.insert("time_embed.2.bias".into(), factor(5, &[32]));
    lora
}

/// A control LoRA is the model's own encoder with products of its factors added.
#[test]
fn control_loras_change_the_unet() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (folder.path().join("control-lora.safetensors"), model("sd1"));
    let lora = control_lora("sd1");
    write_tensors(&lora, &path);
    let file = ControlFile::open(&path, &model).unwrap();
    let ControlModelConfig::ControlNet(config) = file.config() else { panic!("{:?}", file.config()) };
    assert_eq!((config.skips(), config.union), (model.unet_config().skips(), None));
    let (found, unet) = (file.weights(), model.files().unet().unwrap());
    let matrix = |name: &str, columns: usize| {
        let tensor = &lora[name];
        tensor.reshape((tensor.elem_count() / columns, columns)).unwrap()
    };
    for (key, stored, n, k) in [
        ("down_blocks.0.resnets.0.conv1.weight", "input_blocks.1.0.in_layers.2", 8, 72),
        ("time_embedding.linear_1.weight", "time_embed.0", 32, 8),
    ] {
        let product = matrix(&format!("{stored}.up"), 2).matmul(&matrix(&format!("{stored}.down"), k)).unwrap();
        assert_eq!(product.dims(), [n, k]);
        let product: Vec<f32> = product.flatten_all().unwrap().to_vec1().unwrap();
        for ((found, base), change) in values(found.as_ref(), key).iter().zip(values(unet.as_ref(), key)).zip(product) {
            assert!((found - base - change).abs() < 1e-6, "{key}: {found} of {base} and {change}");
        }
    }
    // What has no factors is the file's, or the U-Net's.
    let own: Vec<f32> = lora["time_embed.2.bias"].to_vec1().unwrap();
    assert_eq!(values(found.as_ref(), "time_embedding.linear_2.bias"), own);
    let key = "down_blocks.1.resnets.0.conv2.weight";
    assert_eq!(values(found.as_ref(), key), values(unet.as_ref(), key));
}

/// T2I-Adapters in folders and files, with the names of diffusers and of their authors; Union networks in both.
#[test]
fn adapters_and_union_networks_are_known_by_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (form, kind) in [("full", "sd1"), ("gray", "sd1"), ("light", "sd1"), ("full_xl", "sdxl")] {
        let adapter = TinyAdapter::new(form, 0);
        adapter.write(&path(form));
        write_tensors(&adapter.tensors(), &path(&format!("{form}-diffusers.safetensors")));
        write_tensors(&adapter.original(), &path(&format!("{form}-original.safetensors")));
        let config = AdapterConfig::from_json(&adapter.config().to_string()).unwrap();
        for name in [form.to_string(), format!("{form}-diffusers.safetensors"), format!("{form}-original.safetensors")]
        {
            let file = ControlFile::open(&path(&name), &model(kind)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(*file.config(), ControlModelConfig::Adapter(config.clone()), "{name}");
            let key = "adapter.body.2.in_conv.weight";
            let expected: Vec<f32> = adapter.tensors()[key].flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(values(file.weights().as_ref(), key), expected, "{name}");
        }
    }
    TinyUnion.write("sdxl", &path("union"));
    write_tensors(&TinyUnion.tensors("sdxl"), &path("union.safetensors"));
    let config = ControlConfig::from_json(&TinyUnion.config("sdxl").to_string()).unwrap();
    assert_eq!(config.union.map(|union| union.types), Some(8));
    for name in ["union", "union.safetensors"] {
        let file = ControlFile::open(&path(name), &model("sdxl")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(*file.config(), ControlModelConfig::ControlNet(config.clone()), "{name}");
    }
    TinyLllite { number: 0 }.write(&path("lllite.safetensors"));
    let file = ControlFile::open(&path("lllite.safetensors"), &model("sdxl")).unwrap();
    let ControlModelConfig::Lllite(lllite) = file.config() else { panic!("{:?}", file.config()) };
    assert_eq!((lllite.modules.len(), lllite.downscale()), (7, 32));
    for (key, shape, says) in [
        ("input_blocks_3_1_transformer_blocks_0_attn1_to_q.up.0.weight", &[12, 6][..], "up.0.weight"),
        ("middle_block_1_transformer_blocks_0_attn1_to_v.conditioning1.2.weight", &[3, 3, 4], "conditioning1.2.weight"),
        ("input_blocks_3_1_transformer_blocks_0_attn1_to_q.down.0.weight", &[5, 13], "for 13 channels"),
        ("input_blocks_9_1_transformer_blocks_0_attn1_to_q.down.0.weight", &[5, 12], "input_blocks_9_1"),
    ] {
        let mut tensors = TinyLllite { number: 0 }.tensors();
        tensors.insert(format!("lllite_unet_{key}"), zeros(shape));
        write_tensors(&tensors, &path("bad.safetensors"));
        let error = ControlFile::open(&path("bad.safetensors"), &model("sdxl")).map(drop).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("bad.safetensors"), "{error}");
    }
    // A single file says by its name alone that residuals are means.
    write_tensors(&tensors("sd1"), &path("control_v11e_sd15_shuffle.safetensors"));
    let file = ControlFile::open(&path("control_v11e_sd15_shuffle.safetensors"), &model("sd1")).unwrap();
    assert!(matches!(file.config(), ControlModelConfig::ControlNet(config) if config.global_pool));
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
