//! Files that are known by their tensors, and the weights that they give.

use candle_core::{DType, Tensor};
use kiln_models::ControlFile;
use kiln_testkit::{TinyAdapter, TinyControl, TinyLllite, TinyUnion, write_tensors};
use kiln_unet::{AdapterConfig, ControlConfig, ControlModelConfig};

use super::{Tensors, control_lora, model, original, tensors, values, zeros};

fn config(file: &ControlFile) -> &ControlModelConfig {
    file.config().own().unwrap()
}

fn prefixed(tensors: Tensors, prefix: &str) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
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
            assert_eq!(*self::config(&file), ControlModelConfig::ControlNet(config.clone()), "{}", path.display());
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
    let (sum, unet) = (ControlFile::open(&path, &model).unwrap().weights(), model.files().denoiser_weights().unwrap());
    let plain = |key: &str| tensors[key].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let key = "down_blocks.1.resnets.0.conv1.weight";
    let expected: Vec<f32> = plain(key).iter().zip(values(unet.as_ref(), key)).map(|(a, b)| a + b).collect();
    assert_eq!(values(sum.as_ref(), key), expected);
    let key = "controlnet_mid_block.weight";
    assert_eq!(values(sum.as_ref(), key), plain(key));
}

/// A control LoRA is the model's own encoder with products of its factors added.
#[test]
fn control_loras_change_the_unet() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (folder.path().join("control-lora.safetensors"), model("sd1"));
    let lora = control_lora("sd1");
    write_tensors(&lora, &path);
    let file = ControlFile::open(&path, &model).unwrap();
    let ControlModelConfig::ControlNet(config) = config(&file) else { panic!("{:?}", file.config()) };
    assert_eq!((config.skips(), config.union), (model.unet_config().unwrap().skips(), None));
    let (found, unet) = (file.weights(), model.files().denoiser_weights().unwrap());
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
            assert_eq!(*self::config(&file), ControlModelConfig::Adapter(config.clone()), "{name}");
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
        assert_eq!(*self::config(&file), ControlModelConfig::ControlNet(config.clone()), "{name}");
    }
    TinyLllite { number: 0 }.write(&path("lllite.safetensors"));
    let file = ControlFile::open(&path("lllite.safetensors"), &model("sdxl")).unwrap();
    let ControlModelConfig::Lllite(lllite) = self::config(&file) else { panic!("{:?}", file.config()) };
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
    assert!(matches!(self::config(&file), ControlModelConfig::ControlNet(config) if config.global_pool));
}
