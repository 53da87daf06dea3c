//! Conversion of models between layouts and back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln_engine::{
    Converted, DTypeChoice, DeviceChoice, Engine, Event, ModelFolder, ModelOptions, Request, Setup, WeightType, convert,
};
use kiln_models::Error;
use kiln_testkit::fixtures;
use kiln_weights::{Checkpoint, ParamSource};

fn go() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn to(input: &Path, output: &Path, config: Option<&Path>, weight_type: &str) -> Converted {
    let options = ModelOptions { config: config.map(Path::to_path_buf), ..ModelOptions::default() };
    convert(input, output, &options, weight_type.parse().unwrap(), false, &go).unwrap_or_else(|error| panic!("{error}"))
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

/// The files that are restored byte for byte: all with current names.
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
fn folders_round_trip_byte_for_byte() {
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
    // Of the tiny model only the text encoder's matrices have rows of 32.
    assert_eq!(types("c.gguf", "q8_0"), ["F16", "F32", "I64", "Q8_0"]);
    let quantised = tensors(&folder.path().join("c.gguf"));
    let name = "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight";
    assert!(quantised.iter().any(|(key, _, dtype, _)| key == name && dtype == "Q8_0"));
    // Token tables are not matrices of products, as with `--weight-type` of a run.
    let table = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight";
    assert!(quantised.iter().any(|(key, _, dtype, _)| key == table && dtype == "F16"));
    // A quantized file can be opened and converted to safetensors as f32.
    let back = folder.path().join("d.safetensors");
    to(&folder.path().join("c.gguf"), &back, Some(&original), "auto");
    assert!(tensors(&back).iter().any(|(key, _, dtype, _)| key == name && dtype == "F32"));
}

#[test]
fn impossible_outputs_are_refused_before_writing() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |output: &str, weight_type: &str| {
        let (options, weight_type) = (ModelOptions::default(), weight_type.parse::<WeightType>().unwrap());
        convert(&fixtures("models/sd1"), &folder.path().join(output), &options, weight_type, false, &go).unwrap_err()
    };
    assert!(refused("a.ckpt", "auto").to_string().contains("PyTorch files can only be read"));
    assert!(refused("a.safetensors", "q4_k").to_string().contains("block types need a .gguf file"));
    std::fs::write(folder.path().join("b.gguf"), "precious").unwrap();
    assert!(matches!(refused("b.gguf", "auto"), Error::Files(kiln_files::Error::Exists(_))));
    assert!("q9_9".parse::<WeightType>().unwrap_err().contains("q6_k"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Every file below a folder by relative path.
fn all_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut files, mut waiting) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            files.insert(name, std::fs::read(path).unwrap());
        }
    }
    files
}

/// Without `--config`: the file contains configurations, tokenizers and defaults, and the folder is restored unchanged.
#[test]
fn a_single_file_keeps_the_folder_s_other_files() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["sd1", "sd2v", "sdxl"] {
        let original = folder.path().join(kind);
        let copied = Command::new("cp").arg("-r").arg(fixtures("models").join(kind)).arg(&original).status().unwrap();
        assert!(copied.success());
        std::fs::write(original.join("kiln.json"), "{\"steps\": 3}\n").unwrap();
        for name in ["model.safetensors", "model.gguf"] {
            let (single, back) =
                (folder.path().join(format!("{kind}-{name}")), folder.path().join(format!("{kind}-{name} back")));
            assert!(to(&original, &single, None, "auto").not_kept.is_empty());
            to(&single, &back, None, "auto");
            assert_eq!(ModelFolder::open(&single).unwrap().defaults().steps, 3);
            let (expected, found) = (all_files(&original), all_files(&back));
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{kind} by way of {name}"
            );
            for (path, bytes) in expected {
                assert!(found[&path] == bytes, "{kind}: {path} by way of {name}");
            }
        }
    }
}

/// The model that comes with Kiln has other heads, groups and tokens than official models, and its own schedule: from
/// one file it generates the same image bit for bit.
#[test]
fn a_single_file_generates_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let original = kiln_testkit::repository().join("models/emoji");
    let image = |model: &Path| {
        let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
        let mut engine = Engine::load(ModelFolder::open(model).unwrap(), &setup, &mut |_| go()).unwrap();
        let request = Request {
            prompt: "a red apple".into(),
            width: Some(64),
            height: Some(64),
            steps: Some(2),
            seed: Some(7),
            ..Request::default()
        };
        let job = request.resolve(engine.model()).unwrap();
        let mut rgb = Vec::new();
        let watch = &mut |event| {
            if let Event::Image(image) = event {
                rgb = image.rgb.clone();
            }
            Ok(go())
        };
        engine.txt2img(&job, watch).unwrap();
        rgb
    };
    let expected = image(&original);
    assert_eq!(expected.len(), 64 * 64 * 3);
    for name in ["a.safetensors", "a.gguf"] {
        let path = folder.path().join(name);
        to(&original, &path, None, "auto");
        assert!(image(&path) == expected, "{name}");
    }
}

/// Between two files the tensors are renamed regardless of their shapes.
#[test]
fn a_checkpoint_of_unusual_shapes_needs_no_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (ckpt, path) = (fixtures("single/sd1.ckpt"), folder.path().join("a.safetensors"));
    to(&ckpt, &path, None, "auto");
    assert_eq!(tensors(&ckpt), tensors(&path));
}

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.safetensors", "a.gguf", "folder"] {
        for after in [0, 1, 5, 20] {
            let calls = Cell::new(0);
            let proceed = || {
                calls.set(calls.get() + 1);
                if calls.get() <= after { go() } else { ControlFlow::Break(()) }
            };
            let (output, options) = (folder.path().join(name), ModelOptions::default());
            let stopped = convert(&fixtures("models/sd1"), &output, &options, WeightType::Keep, false, &proceed);
            assert!(
                matches!(stopped, Err(Error::Interrupted)) || calls.get() <= after,
                "{name} after {after}: {stopped:?}"
            );
            if stopped.is_err() {
                assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name} after {after}");
            } else if output.is_dir() {
                std::fs::remove_dir_all(output).unwrap();
            } else {
                std::fs::remove_file(output).unwrap();
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn an_impossible_path_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("pipe.gguf");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let refused = |output: &Path| {
        let options = ModelOptions::default();
        convert(&fixtures("models/sd1"), output, &options, WeightType::Keep, true, &go).unwrap_err().to_string()
    };
    assert!(refused(&fifo).contains("expected a regular file"));
    let message = refused(&folder.path().join("no/such/a.gguf"));
    assert!(message.contains("no/such: not found; looked for a folder for the model; create it first"), "{message}");
    let options = ModelOptions::default();
    let message = convert("/dev/null".as_ref(), &folder.path().join("x"), &options, WeightType::Keep, true, &go);
    let message = message.unwrap_err().to_string();
    assert_eq!(message, "/dev/null: is a device, expected a regular file");
}
