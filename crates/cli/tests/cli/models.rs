//! Model folders with a missing, truncated or wrong file.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_testkit::fixtures;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::sandbox::{Run, Sandbox};

/// A copy of one of the tiny models to damage.
pub struct ModelCopy {
    path: String,
    /// Deleted with the copy.
    _folder: TempDir,
}

impl ModelCopy {
    /// A copy of `tests/fixtures/models/{name}`.
    pub fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        for file in files(name) {
            let to = path.join(&file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(original(name, &file), to).unwrap();
        }
        let path = path.to_str().unwrap().to_string();
        Self { path, _folder: folder }
    }

    /// The model's folder.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn file(&self, file: &str) -> PathBuf {
        Path::new(&self.path).join(file)
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.file(file)).unwrap();
    }

    pub fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.file(file), bytes).unwrap();
    }

    /// Generates an image with the model, which may be damaged.
    fn run(&self) -> Run {
        let sandbox = Sandbox::new();
        let run = sandbox.txt2img(&["an apple", "-m", &self.path, "-o", "apple.png"]);
        let expected: &[&str] = if run.status.success() { &["apple.png"] } else { &[] };
        assert_eq!(sandbox.names(), expected, "{run}");
        assert!(matches!(run.status.code(), Some(0 | 1)), "{run}");
        run
    }
}

/// A file of a tiny model.
fn original(model: &str, file: &str) -> PathBuf {
    fixtures("models").join(model).join(file)
}

/// The files of a tiny model, sorted.
fn files(model: &str) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, files);
            } else {
                files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_string());
            }
        }
    }
    let root = fixtures("models").join(model);
    let mut files = Vec::new();
    walk(&root, &root, &mut files);
    files.sort();
    assert!(files.len() >= 12, "{files:?}");
    files
}

/// Files that may be missing, with the reason.
const OPTIONAL: [(&str, &str); 2] = [
    ("special_tokens_map.json", "repeats what tokenizer_config.json says; newer transformers do not write it"),
    ("tokenizer_config.json", "says what transformers' CLIPTokenizer has by default"),
];

/// Files that another model's file can replace, with the reason. Weights and networks are never among them.
const EXCHANGEABLE: [(&str, &str); 3] = [
    ("scheduler_config.json", "any scheduler runs with any model; that it is the wrong one, only the image shows"),
    ("special_tokens_map.json", "names another padding token of the same vocabulary"),
    ("tokenizer_config.json", "names another padding token of the same vocabulary"),
];

fn is_in(list: &[(&str, &str)], file: &str) -> bool {
    list.iter().any(|(name, _)| file.ends_with(&format!("/{name}")))
}

/// Damages every file of `model` in turn, and expects the run to fail with a message that names the file.
fn damage(model: &str, optional: &[(&str, &str)], how: impl Fn(&ModelCopy, &str)) {
    for file in files(model) {
        let copy = ModelCopy::of(model);
        how(&copy, &file);
        let run = copy.run();
        if is_in(optional, &file) {
            assert!(run.status.success(), "{file} is optional: {run}");
            continue;
        }
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", &file));
        let run = run.fails(1, &[&copy.path, folder, name]);
        assert!(!run.error().contains("os error"), "names the system's reason, not what was looked for: {run}");
    }
}

#[test]
fn a_missing_file_of_sd1_is_named() {
    damage("sd1", &OPTIONAL, |copy, file| copy.remove(file));
}

#[test]
fn a_missing_file_of_sdxl_is_named() {
    damage("sdxl", &OPTIONAL, |copy, file| copy.remove(file));
}

fn cut(copy: &ModelCopy, file: &str) {
    let bytes = fs::read(copy.file(file)).unwrap();
    copy.write(file, &bytes[..bytes.len() / 2]);
}

#[test]
fn a_file_of_sd1_that_is_cut_off_is_named() {
    damage("sd1", &[], cut);
}

#[test]
fn a_truncated_file_of_sdxl_is_named() {
    damage("sdxl", &[], cut);
}

#[test]
fn an_empty_file_of_sd1_is_named() {
    damage("sd1", &[], |copy, file| copy.write(file, ""));
}

#[test]
fn an_empty_file_of_sdxl_is_named() {
    damage("sdxl", &[], |copy, file| copy.write(file, ""));
}

#[test]
fn a_folder_instead_of_a_file_is_named() {
    for file in files("sd1").into_iter().filter(|file| file != "model_index.json") {
        let copy = ModelCopy::of("sd1");
        copy.remove(&file);
        fs::create_dir(copy.file(&file)).unwrap();
        copy.run().fails(1, &[&copy.path, &file]);
    }
}

/// Replaces every file of `model` by that of `other` in turn.
fn swap(model: &str, other: &str) {
    for file in files(model) {
        // A model with one text encoder provides it for both.
        let theirs = [file.clone(), file.replace("_2/", "/")].map(|file| original(other, &file));
        let theirs = fs::read(theirs.iter().find(|path| path.exists()).unwrap()).unwrap();
        if theirs == fs::read(original(model, &file)).unwrap() {
            continue; // the models share their vocabulary
        }
        let copy = ModelCopy::of(model);
        copy.write(&file, theirs);
        let run = copy.run();
        if is_in(&EXCHANGEABLE, &file) {
            assert!(run.status.success(), "{file} fits as well: {run}");
        } else if file.ends_with(".safetensors") {
            run.fails(1, &[&copy.path, &file, ": tensor `", "expected"]);
        } else {
            // Two files contradict each other; the message has one of them, and the name or the value of the other.
            let run = run.fails(1, &[&copy.path]);
            let contradiction = [" but ", "expected", "model_index.json"];
            assert!(contradiction.iter().any(|text| run.error().contains(text)), "{run}");
        }
    }
}

#[test]
fn a_file_of_sdxl_in_sd1_is_refused() {
    swap("sd1", "sdxl");
}

#[test]
fn a_file_of_sd1_in_sdxl_is_refused() {
    swap("sdxl", "sd1");
}

/// A whole component of another model: its files match each other, but not the rest.
#[test]
fn a_component_of_another_model_is_refused() {
    for (component, expected) in [
        ("unet", &["unet/config.json", "cross_attention_dim"][..]),
        ("text_encoder", &["cross_attention_dim", "text encoder"]),
    ] {
        for (model, other) in [("sd1", "sdxl"), ("sdxl", "sd1")] {
            let copy = ModelCopy::of(model);
            for file in files(model).iter().filter(|file| file.split('/').next() == Some(component)) {
                copy.write(file, fs::read(original(other, file)).unwrap());
            }
            copy.run().fails(1, expected);
        }
    }
}

/// The header of a safetensors file, and the bytes after it.
fn header(bytes: &[u8]) -> (Value, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

/// A safetensors file of a header and bytes.
fn with_header(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A tensor of each component's weights.
const TENSORS: [(&str, &str); 3] = [
    ("unet/diffusion_pytorch_model.safetensors", "conv_in.weight"),
    ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_in.weight"),
    ("text_encoder/model.safetensors", "text_model.embeddings.position_embedding.weight"),
];

/// Changes the header entry of one tensor in each of the model's files.
fn change_tensor(change: impl Fn(&mut Value), expected: impl Fn(&Value) -> Vec<String>) {
    for (file, tensor) in TENSORS {
        let copy = ModelCopy::of("sd1");
        let bytes = fs::read(copy.file(file)).unwrap();
        let (mut header, data) = header(&bytes);
        let name = if header[tensor].is_null() { tensor.trim_start_matches("text_model.") } else { tensor };
        let before = header[name].clone();
        assert!(before.is_object(), "{file} has no {tensor}");
        change(&mut header[name]);
        if header[name].is_null() {
            header[format!("not_{name}")] = before.clone(); // bytes without a tensor are a separate error
            header.as_object_mut().unwrap().remove(name);
        }
        copy.write(file, with_header(&header, data));
        let expected = expected(&before);
        let expected: Vec<&str> = expected.iter().map(String::as_str).chain([file, name]).collect();
        copy.run().fails(1, &expected);
    }
}

fn shape(tensor: &Value) -> String {
    let dims: Vec<String> = tensor["shape"].as_array().unwrap().iter().map(Value::to_string).collect();
    format!("[{}]", dims.join(", "))
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    let expected = |before: &Value| vec![format!("is missing, expected shape {}", shape(before))];
    change_tensor(|tensor| *tensor = Value::Null, expected);
}

#[test]
fn a_tensor_of_the_wrong_shape_is_named_with_both_shapes() {
    let flatten = |tensor: &mut Value| {
        let elements: u64 = tensor["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).product();
        tensor["shape"] = json!([1, elements]);
    };
    change_tensor(flatten, |before| vec!["has shape [1, ".into(), format!("expected {}", shape(before))]);
}

#[test]
fn a_tensor_of_whole_numbers_is_named_with_its_type() {
    // The same number of bytes with another type.
    let integers = |tensor: &mut Value| tensor["dtype"] = json!(if tensor["dtype"] == "F32" { "I32" } else { "I16" });
    change_tensor(integers, |_| vec!["is stored as I".into(), "expected one of F64, F32".into()]);
}

#[test]
fn truncated_weights_are_named() {
    let file = "unet/diffusion_pytorch_model.safetensors";
    let bytes = fs::read(original("sd1", file)).unwrap();
    let data = bytes.len() - header(&bytes).1.len();
    for length in [0, 1, 7, 8, 9, 100, data - 1, data, data + 1, bytes.len() - 1, bytes.len() + 1] {
        let copy = ModelCopy::of("sd1");
        copy.write(file, [&bytes, &b"x"[..]].concat().get(..length).unwrap());
        copy.run().fails(1, &[file]);
    }
}

#[test]
fn nan_weights_produce_no_image() {
    let file = "unet/diffusion_pytorch_model.safetensors";
    let copy = ModelCopy::of("sd1");
    let bytes = fs::read(copy.file(file)).unwrap();
    let (header, data) = header(&bytes);
    copy.write(file, with_header(&header, &vec![0xff; data.len()]));
    copy.run().fails(1, &["the denoiser gave", "not numbers"]);
}

#[test]
fn a_decoder_that_overflows_f16_is_retried_in_bf16_with_a_message() {
    let file = "vae/diffusion_pytorch_model.safetensors";
    let copy = ModelCopy::of("sd1");
    let bytes = fs::read(copy.file(file)).unwrap();
    let (header, data) = header(&bytes);
    // The largest numbers of f16, stored as f16: their sums overflow it.
    let mut data = data.to_vec();
    let offsets = &header["decoder.conv_in.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| offsets[i].as_u64().unwrap() as usize);
    data[start..end].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&[0xff, value[1] & 0x80 | 0x7b]));
    copy.write(file, with_header(&header, &data));
    let sandbox = Sandbox::new();
    let run = sandbox.txt2img(&["an apple", "-m", copy.path(), "--dtype", "f16", "--device", "cpu", "-b2", "-s7"]);
    let run = run.succeeds();
    let expected = "image 1 (seed 7) overflowed f16 in the VAE; it and all following images are decoded in bf16\n";
    assert_eq!(run.stderr.matches("overflowed").count(), 1, "{run}");
    assert!(run.stderr.contains(expected) && run.images().len() == 2, "{run}");
}

#[test]
fn configurations_with_absurd_values_are_refused() {
    for (file, key, value) in [
        ("model_index.json", "_class_name", json!("WanPipeline")),
        ("model_index.json", "_class_name", json!(7)),
        ("unet/config.json", "block_out_channels", json!([])),
        ("unet/config.json", "block_out_channels", json!([0, 0])),
        ("unet/config.json", "block_out_channels", json!([9_000_000_000_000_000_000_u64, 8])),
        ("unet/config.json", "down_block_types", json!(["DownBlock3D", "DownBlock2D"])),
        ("unet/config.json", "attention_head_dim", json!(0)),
        ("unet/config.json", "norm_num_groups", json!(0)),
        ("unet/config.json", "norm_num_groups", json!(7)),
        ("unet/config.json", "in_channels", json!(8)),
        ("unet/config.json", "cross_attention_dim", json!(768)),
        ("vae/config.json", "latent_channels", json!(16)),
        ("vae/config.json", "block_out_channels", json!([])),
        ("vae/config.json", "norm_num_groups", json!(0)),
        ("vae/config.json", "scaling_factor", json!(0)),
        ("text_encoder/config.json", "hidden_size", json!(0)),
        ("text_encoder/config.json", "num_attention_heads", json!(0)),
        ("text_encoder/config.json", "num_attention_heads", json!(7)),
        ("text_encoder/config.json", "num_hidden_layers", json!(1_000_000_000_u64)),
        ("text_encoder/config.json", "max_position_embeddings", json!(3)),
        ("scheduler/scheduler_config.json", "_class_name", json!("NoSuchScheduler")),
        ("scheduler/scheduler_config.json", "num_train_timesteps", json!(0)),
        ("scheduler/scheduler_config.json", "num_train_timesteps", json!(9_000_000_000_000_000_000_u64)),
        ("scheduler/scheduler_config.json", "beta_end", json!(2.0)),
        ("scheduler/scheduler_config.json", "prediction_type", json!("guess")),
        ("tokenizer/tokenizer_config.json", "model_max_length", json!(0)),
        ("tokenizer/special_tokens_map.json", "bos_token", json!("<nowhere>")),
    ] {
        let copy = ModelCopy::of("sd1");
        let mut config: Value = serde_json::from_slice(&fs::read(copy.file(file)).unwrap()).unwrap();
        config[key] = value.clone();
        copy.write(file, config.to_string());
        let run = copy.run();
        assert!(!run.status.success(), "{file} with {key} = {value} is taken: {run}");
        assert!(run.error().contains(&copy.path), "{file} with {key} = {value}: no file is named: {run}");
    }
}

/// The folder's own defaults are checked like flags, and the error names the file.
#[test]
fn errors_in_a_models_defaults_name_the_file() {
    for (text, expected) in [
        ("", "is not valid JSON"),
        ("{\"steps\": 20", "is not valid JSON"),
        ("20", "invalid type"),
        ("{\"steps\": \"20\"}", "invalid type"),
        ("{\"step\": 20}", "unknown field `step`, expected one of"),
        ("{\"steps\": 0}", "`steps` is 0, expected a number from 1 to 1000"),
        ("{\"steps\": -1}", "kiln.json"),
        ("{\"width\": 100}", "the nearest is 104"),
        ("{\"height\": 0}", "`height` is 0"),
        ("{\"cfg_scale\": -1}", "`cfg_scale` is -1"),
    ] {
        let copy = ModelCopy::of("sd1");
        copy.write("kiln.json", text);
        let sandbox = Sandbox::new();
        let run = sandbox.txt2img(&["an apple", "-m", copy.path()]);
        let run = run.fails(1, &[copy.file("kiln.json").to_str().unwrap(), expected]);
        assert!(run.stderr.starts_with("error: ") && sandbox.names().is_empty(), "{run}");
    }
}

#[test]
fn typical_download_errors_are_explained() {
    for (bytes, expected) in [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        ("<!DOCTYPE html><html></html>", "web page"),
        ("PK\u{3}\u{4}archive/data.pkl", "zip archive"),
    ] {
        let copy = ModelCopy::of("sd1");
        copy.write("vae/diffusion_pytorch_model.safetensors", bytes);
        copy.run().fails(1, &["vae/diffusion_pytorch_model.safetensors", expected]);
    }
}
