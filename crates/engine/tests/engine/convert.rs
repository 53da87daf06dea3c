//! Models from one layout into another and back.

use std::path::{Path, PathBuf};

use kiln_engine::{Converted, Error, ModelOptions, WeightType, convert};
use kiln_testkit::fixtures;
use kiln_weights::{Checkpoint, ParamSource};

fn to(input: &Path, output: &Path, config: Option<&Path>, weight_type: &str) -> Converted {
    let options = ModelOptions { config: config.map(Path::to_path_buf), ..ModelOptions::default() };
    convert(input, output, &options, weight_type.parse().unwrap(), false).unwrap_or_else(|error| panic!("{error}"))
}

/// Shape, type and bytes of every tensor.
fn tensors(path: &Path) -> Vec<(String, Vec<usize>, String, Vec<u8>)> {
    let file = Checkpoint::open(path).unwrap();
    let mut keys = file.keys();
    keys.sort();
    let one = |key: String| {
        let data = file.data(&key).unwrap().unwrap();
        (key, data.info.shape.clone(), format!("{:?}", data.info.dtype), data.bytes.into_owned())
    };
    keys.into_iter().map(one).collect()
}

const UNET: &str = "unet/diffusion_pytorch_model.safetensors";
const VAE: &str = "vae/diffusion_pytorch_model.safetensors";

/// The files that come back byte for byte: all that have the names of today.
fn round_trip(kind: &str, files: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let original = fixtures("models").join(kind);
    for name in ["model.safetensors", "model.gguf"] {
        let single = folder.path().join(name);
        let converted = to(&original, &single, None, "auto");
        assert_eq!(converted.tensors, tensors(&single).len());
        let back = folder.path().join(format!("{name} back"));
        to(&single, &back, Some(&original), "auto");
        for file in files {
            let (a, b) = (std::fs::read(original.join(file)).unwrap(), std::fs::read(back.join(file)).unwrap());
            assert!(a == b, "{kind}: {file} by way of {name}");
        }
        for file in ["model_index.json", "unet/config.json", "tokenizer/tokenizer_config.json"] {
            let text = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(text(&original), text(&back));
        }
    }
}

#[test]
fn folders_come_back_byte_for_byte() {
    round_trip("sd1", &[UNET, VAE, "text_encoder/model.safetensors"]);
    // The other encoders' tensors lack `text_model.` in these folders; they get it.
    round_trip("sd2v", &[UNET, VAE]);
    round_trip("sdxl", &[UNET, VAE, "text_encoder_2/model.safetensors"]);
}

#[test]
fn single_files_keep_their_tensors_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let (configs, ckpt) = (fixtures("single/sd1"), fixtures("single/sd1.ckpt"));
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    to(&ckpt, &path("a.safetensors"), Some(&configs), "auto");
    to(&path("a.safetensors"), &path("b.gguf"), Some(&configs), "auto");
    to(&path("b.gguf"), &path("c.safetensors"), Some(&configs), "auto");
    assert_eq!(tensors(&ckpt), tensors(&path("a.safetensors")));
    assert_eq!(tensors(&ckpt), tensors(&path("b.gguf")));
    assert!(std::fs::read(path("a.safetensors")).unwrap() == std::fs::read(path("c.safetensors")).unwrap());
}

#[test]
fn types_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let original = fixtures("models/sd1");
    let types = |name: &str, weight_type: &str| {
        let path = folder.path().join(name);
        to(&original, &path, None, weight_type);
        let mut types: Vec<String> = tensors(&path).into_iter().map(|(_, _, dtype, _)| dtype).collect();
        types.sort();
        types.dedup();
        types
    };
    assert_eq!(types("a.safetensors", "f32"), ["F32", "I64"]);
    assert_eq!(types("b.safetensors", "bf16"), ["BF16", "I64"]);
    // The tiny model's matrices of the text encoder alone have rows of 32.
    assert_eq!(types("c.gguf", "q8_0"), ["F16", "F32", "I64", "Q8_0"]);
    let quantised = tensors(&folder.path().join("c.gguf"));
    let name = "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight";
    assert!(quantised.iter().any(|(key, _, dtype, _)| key == name && dtype == "Q8_0"));
    // What is quantised opens, and goes back into safetensors as f32.
    let back = folder.path().join("d.safetensors");
    to(&folder.path().join("c.gguf"), &back, Some(&original), "auto");
    assert!(tensors(&back).iter().any(|(key, _, dtype, _)| key == name && dtype == "F32"));
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |output: &str, weight_type: &str| {
        let (options, weight_type) = (ModelOptions::default(), weight_type.parse::<WeightType>().unwrap());
        convert(&fixtures("models/sd1"), &folder.path().join(output), &options, weight_type, false).unwrap_err()
    };
    assert!(refused("a.ckpt", "auto").to_string().contains("pickles are read, not written"));
    assert!(refused("a.safetensors", "q4_k").to_string().contains("blocks are for .gguf files"));
    std::fs::write(folder.path().join("b.gguf"), "precious").unwrap();
    assert!(matches!(refused("b.gguf", "auto"), Error::Exists(_)));
    assert!("q9_9".parse::<WeightType>().unwrap_err().contains("q6_k"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
