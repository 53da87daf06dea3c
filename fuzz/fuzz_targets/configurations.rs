//! A configuration in JSON. The first byte selects its type. A model folder has the other files of `models/emoji`.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_engine::{ModelFolder, Planner, Request};
use kiln_families::UNET;
use kiln_scheduler::SchedulerConfig;
use kiln_unet::{Unet, UnetConfig};
use kiln_vae::{Decoder, TinyConfig, TinyDecoder, VaeConfig};
use kiln_weights::{Lora, Targets};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// The configurations of a model folder.
const FILES: [(u8, &str, &str); 6] = [
    (b'i', "model_index.json", include_str!("../../models/emoji/model_index.json")),
    (b'k', "kiln.json", include_str!("../../models/emoji/kiln.json")),
    (b'u', "unet/config.json", include_str!("../../models/emoji/unet/config.json")),
    (b'v', "vae/config.json", include_str!("../../models/emoji/vae/config.json")),
    (b'e', "text_encoder/config.json", include_str!("../../models/emoji/text_encoder/config.json")),
    (b's', "scheduler/scheduler_config.json", include_str!("../../models/emoji/scheduler/scheduler_config.json")),
];

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for files")
}

/// A folder with configurations only.
static MODEL: LazyLock<TempDir> = LazyLock::new(|| {
    let model = folder();
    for (_, name, text) in FILES {
        let path = model.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    ModelFolder::open(model.path()).expect("a model");
    model
});

/// A PEFT file, and the layers of its model.
static ADAPTER: LazyLock<(TempDir, PathBuf, Targets)> = LazyLock::new(|| {
    let folder = folder();
    let path = folder.path().join("adapter_model.safetensors");
    std::fs::write(&path, include_bytes!("../../tests/fixtures/lora/sd1/peft_rs/adapter_model.safetensors"))
        .expect("a file");
    let config = include_str!("../../tests/fixtures/models/sd1/unet/config.json");
    let unet = Unet::new(UnetConfig::from_json(config).expect("a configuration"));
    let targets = Targets::new(&[(UNET, unet.segments())]);
    Lora::open(&path, &targets).expect("a LoRA");
    (folder, path, targets)
});

fuzz_target!(|data: &[u8]| {
    let Some((&kind, json)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(json) else { return };
    match kind {
        b'u' => {
            if let Ok(config) = UnetConfig::from_json(text) {
                let _ = (config.context_dim(), config.pooled_dim());
                assert!(!Unet::new(config).segments().is_empty());
            }
        }
        b'v' => {
            if let Ok(config) = VaeConfig::from_json(text) {
                assert!(config.downscale() >= 1);
                assert!(!Decoder::new(&config).segments().is_empty());
            }
        }
        b't' => {
            if let Ok(config) = TinyConfig::from_json(text) {
                assert!(config.downscale() >= 1 && config.upscale() >= 1);
                assert!(!TinyDecoder::new(&config).segments().is_empty());
            }
        }
        b'e' => {
            if let Ok(config) = TextEncoderConfig::from_json(text) {
                let _ = (config.pooled_size(), config.activation());
                let _ = TextEncoder::new(config);
            }
        }
        b's' => {
            if let Ok(config) = SchedulerConfig::from_json(text) {
                let _ = config.sampler();
            }
        }
        b'a' => {
            let (folder, path, targets) = &*ADAPTER;
            std::fs::write(folder.path().join("adapter_config.json"), json).expect("a file");
            if let Ok(lora) = Lora::open(path, targets) {
                assert!(!lora.patches().is_empty());
            }
        }
        _ => {}
    }
    if let Some((_, name, usual)) = FILES.iter().find(|(its, ..)| *its == kind) {
        model(MODEL.path(), name, json);
        std::fs::write(MODEL.path().join(name), usual).expect("a file");
    }
});

/// Opens the folder with this file instead of the usual one, and resolves a request with defaults.
fn model(folder: &Path, name: &str, json: &[u8]) {
    std::fs::write(folder.join(name), json).expect("a file");
    let Ok(model) = ModelFolder::open(folder) else { return };
    let _ = Request { prompt: "a cat".into(), seed: Some(1), ..Request::default() }.resolve(&model);
    let _ = Planner::new(&model, None);
}
