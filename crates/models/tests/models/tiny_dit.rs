//! The family of fixtures `tiny-dit` shows that a family is one module: its model opens, converts and is inspected, and no other
//! code knows its name.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_models::{DTypeChoice, Inspected, ModelFolder, ModelOptions, WeightType, convert, inspect};
use kiln_testkit::{fixtures, repository};
use kiln_vae::{Decoder, Encoder};

use crate::common::{data, weights};

fn folder() -> PathBuf {
    fixtures("models").join("tiny-dit")
}

/// `KILN_UPDATE_FIXTURES=1` writes the weights.
#[test]
fn the_fixture_has_random_weights() {
    let model = ModelFolder::open(&folder()).unwrap();
    assert_eq!((model.family().id(), model.size_multiple()), ("tiny_dit", 16));
    let (denoiser, vae) = (model.denoiser(), model.vae_config());
    let (decoder, encoder) = (Decoder::new(vae), Encoder::new(vae));
    let text = model.family().text_stage(model.texts(), model.denoiser_config()).unwrap();
    for (name, networks) in [
        ("transformer/diffusion_pytorch_model.safetensors", vec![denoiser.segments()]),
        ("vae/diffusion_pytorch_model.safetensors", vec![encoder.segments(), decoder.segments()]),
        ("byte_encoder/model.safetensors", vec![text.networks()[0].segments]),
    ] {
        let (path, made) = (folder().join(name), weights(&networks, 7));
        if std::env::var_os("KILN_UPDATE_FIXTURES").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == made, "{name} differs; KILN_UPDATE_FIXTURES=1 writes it");
    }
}

#[test]
fn it_converts_to_a_file_and_back() {
    let to = tempfile::tempdir().unwrap();
    let convert = |from: &Path, to: &Path| {
        convert(from, to, &ModelOptions::default(), WeightType::Keep, false, &|| ControlFlow::Continue(())).unwrap()
    };
    for name in ["tiny.safetensors", "tiny.gguf"] {
        let (file, again) = (to.path().join(name), to.path().join(format!("{name}-again")));
        let converted = convert(&folder(), &file);
        assert!(converted.left_out.is_empty() && converted.not_kept.is_empty(), "{converted:?}");
        let model = ModelFolder::open(&file).unwrap();
        assert_eq!(model.denoiser_config(), ModelFolder::open(&folder()).unwrap().denoiser_config());
        convert(&file, &again);
        for part in ["transformer/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "byte_encoder/model"] {
            let bytes = |folder: &Path| std::fs::read(folder.join(format!("{part}.safetensors"))).unwrap();
            let (own, back) = (bytes(&folder()), bytes(&again));
            assert!(data(&own) == data(&back), "{name} {part}");
        }
        let Inspected::File(report) = inspect(&file, DTypeChoice::F32).unwrap() else { panic!("a file") };
        let model = report.model.unwrap();
        assert_eq!((model.kind.id, model.problems.len(), model.unexpected.len()), ("tiny_dit", 0, 0));
    }
    let Inspected::Folder(report) = inspect(&folder(), DTypeChoice::F32).unwrap() else { panic!("a folder") };
    let names: Vec<&str> = report.components.iter().map(|component| component.name.as_str()).collect();
    assert_eq!(names, ["byte_encoder", "transformer", "vae (decoder)", "vae (encoder)"]);
}

/// The family needs its module and its place in the list.
#[test]
fn no_other_code_knows_the_family() {
    let mut found = Vec::new();
    let mut folders = vec![repository().join("crates")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_test = path.ends_with("tests") || path.ends_with("tests.rs");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                let text = std::fs::read_to_string(&path).unwrap().to_lowercase().replace(['-', '_'], "");
                if text.contains("tinydit") {
                    found.push(path.strip_prefix(repository()).unwrap().display().to_string());
                }
            }
        }
    }
    found.sort();
    let module = |name: &str| format!("crates/families/src/{name}.rs");
    assert_eq!(found, ["lib", "list", "tiny_dit/mod"].map(module));
}
