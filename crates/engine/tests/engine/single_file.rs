//! Models in single files of every format: diffusers' latents, and the same bits from all formats.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use kiln_engine::{
    DTypeChoice, Engine, GeneratedImage, Inspection, ModelFolder, ModelOptions, Prediction, Request, inspect,
};
use kiln_testkit::{Fixture, deviation, fixtures};
use kiln_weights::{Checkpoint, NewTensor, ParamSource, write_safetensors};
use tempfile::TempDir;

use crate::support::{cpu, images, request};

fn single(name: &str) -> PathBuf {
    fixtures("single").join(name)
}

/// The configurations of a tiny model with its tokenizers, which its small shapes do not determine.
fn configs(kind: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&single(kind), folder.path());
    for name in ["tokenizer", "tokenizer_2"] {
        let from = fixtures("models").join(kind).join(name);
        if from.is_dir() {
            copy(&from, &folder.path().join(name));
        }
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let to = to.join(entry.file_name().unwrap());
        if entry.is_dir() { copy(&entry, &to) } else { std::fs::copy(&entry, &to).map(drop).unwrap() }
    }
}

fn options(config: &TempDir) -> ModelOptions {
    ModelOptions { config: Some(config.path().to_path_buf()), ..ModelOptions::default() }
}

fn generate(model: ModelFolder) -> GeneratedImage {
    let mut engine = Engine::load(model, &cpu(), &mut |_| ControlFlow::Continue(())).unwrap();
    let request = Request { cfg_scale: Some(7.0), ..request("a red apple", (64, 64), 4, 42) };
    images(&mut engine, &request).remove(0)
}

fn open(path: &Path, options: &ModelOptions) -> ModelFolder {
    ModelFolder::open_with(path, options).unwrap_or_else(|error| panic!("{error}"))
}

fn latents(image: &GeneratedImage) -> Tensor {
    crate::support::latents(std::slice::from_ref(image))
}

/// Expects diffusers' latents in `image`.
fn check(kind: &str, image: &GeneratedImage) {
    let expected = Fixture::open("single/latents.safetensors").tensor(kind);
    let found = deviation(&latents(image), &expected).error;
    assert!(found < 1e-3, "{kind}: {found} standard deviations from diffusers");
}

#[test]
fn stable_diffusion_1_draws_the_same_from_every_format() {
    let config = configs("sd1");
    let options = options(&config);
    let ckpt = generate(open(&single("sd1.ckpt"), &options));
    check("sd1", &ckpt);
    let gguf = generate(open(&single("sd1.gguf"), &options));
    assert_eq!(bits(&gguf), bits(&ckpt));
    assert_eq!(gguf.rgb, ckpt.rgb);
}

#[test]
fn stable_diffusion_xl_in_one_file_equals_diffusers() {
    let config = configs("sdxl");
    check("sdxl", &generate(open(&single("sdxl.safetensors"), &options(&config))));
}

fn bits(image: &GeneratedImage) -> Vec<u32> {
    crate::support::bits(std::slice::from_ref(image))
}

#[test]
fn components_are_replaced_by_other_files() {
    let config = configs("sd1");
    let whole = generate(open(&single("sd1.ckpt"), &options(&config)));
    let parts = ModelOptions {
        unet: Some(single("sd1.gguf")),
        vae: Some(single("vae_legacy.pt")),
        text_encoders: vec![single("sd1.ckpt")],
        ..options(&config)
    };
    let same = generate(open(&single("sd1.gguf"), &parts));
    assert_eq!((bits(&same), same.rgb), (bits(&whole), whole.rgb.clone()));

    // Another autoencoder changes the image but not the latents.
    let other = ModelOptions { vae: Some(single("sdxl.safetensors")), ..options(&config) };
    let other = generate(open(&single("sd1.ckpt"), &other));
    assert_eq!(bits(&other), bits(&whole));
    assert_ne!(other.rgb, whole.rgb);

    let message = |options: ModelOptions| match ModelFolder::open_with(&single("sd1.ckpt"), &options) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let wrong = ModelOptions { text_encoders: vec![single("vae_legacy.pt")], ..options(&config) };
    assert!(message(wrong).contains("has no text encoder of [8] channels"));
    let wrong = ModelOptions { unet: Some(single("vae_legacy.pt")), ..options(&config) };
    assert!(message(wrong).contains("vae_legacy.pt: has no U-Net"));
    let wrong = ModelOptions { vae: Some("no/such.vae".into()), ..options(&config) };
    assert!(message(wrong).contains("a checkpoint file or a component's folder, for `vae`"));
}

#[test]
fn a_u_net_alone_is_completed_by_other_files() {
    let config = configs("sdxl");
    let (folder, whole) = (tempfile::tempdir().unwrap(), single("sdxl.safetensors"));
    let alone = folder.path().join("unet.safetensors");
    // Named as in files of one network: without the prefix of a whole model.
    let file = Checkpoint::open(&whole).unwrap();
    let keys = file.keys();
    let tensors = keys.iter().filter_map(|key| {
        let info = file.info(key)?;
        Some(NewTensor {
            name: key.strip_prefix("model.diffusion_model.")?.to_string(),
            shape: info.shape,
            dtype: info.dtype,
            bytes: Box::new(|| Ok(file.data(key)?.unwrap().bytes)),
        })
    });
    write_safetensors(&mut File::create(&alone).unwrap(), tensors.collect(), &BTreeMap::new()).unwrap();
    let message = ModelFolder::open(&alone).unwrap_err().to_string();
    assert!(
        message.contains("has no autoencoder (VAE) and no CLIP text encoder; give files that have them as `vae` and"),
        "{message}"
    );
    let parts = ModelOptions { vae: Some(whole.clone()), text_encoders: vec![whole.clone()], ..options(&config) };
    assert_eq!(bits(&generate(open(&alone, &parts))), bits(&generate(open(&whole, &options(&config)))));
}

#[test]
fn the_prediction_can_be_set() {
    let config = configs("sd1");
    let epsilon = generate(open(&single("sd1.ckpt"), &options(&config)));
    let v = ModelOptions { prediction: Some(Prediction::V), ..options(&config) };
    let model = open(&single("sd1.ckpt"), &v);
    assert_eq!(model.scheduler_config().prediction_type.as_deref(), Some("v_prediction"));
    assert_ne!(bits(&generate(model)), bits(&epsilon));
}

#[test]
fn an_incomplete_file_is_an_error_with_advice() {
    let message = |name: &str| ModelFolder::open(&single(name)).err().unwrap().to_string();
    assert!(message("comfy.gguf").contains("is not a Stable Diffusion model in one file"), "{}", message("comfy.gguf"));
    let vae = message("vae_legacy.pt");
    assert!(
        vae.contains(
            "no U-Net and no CLIP text encoder; to use it in another model, open that with this file as its `vae`"
        ),
        "{vae}"
    );
    assert!(message("system.ckpt").contains("`posix.system`"));
    assert!(message("bomb.ckpt").contains("compressed entry"));
}

#[test]
fn inspect_shows_the_kind_of_a_file() {
    let report = |name: &str| match inspect(&single(name), DTypeChoice::F32).unwrap() {
        Inspection::File(report) => *report,
        other => panic!("{name} is a file, not {other:?}"),
    };
    let sd1 = report("sd1.ckpt");
    assert_eq!(sd1.format, "PyTorch (pickle)");
    assert_eq!(sd1.metadata["global_step"], "7");
    let model = sd1.model.unwrap();
    assert_eq!(model.parts, ["U-Net", "autoencoder", "text encoder"]);
    assert_eq!((model.prediction, model.unexpected.as_slice()), (Prediction::Epsilon, [].as_slice()));
    let xl = report("sdxl.safetensors").model.unwrap();
    assert_eq!(xl.parts, ["U-Net", "autoencoder", "text encoder", "second text encoder"]);
    assert_eq!(xl.unexpected, [""; 0]);
}
