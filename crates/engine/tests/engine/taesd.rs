//! A TAESD instead of a model's own autoencoder.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_engine::{Engine, GeneratedImage, Setup};
use kiln_testkit::fixtures;
use kiln_vae::{TinyConfig, TinyDecoder};
use kiln_weights::{Placement, load, open_component};

use crate::support::{cpu, images, latents, request, try_load};

fn open(model: &Path, taesd: PathBuf) -> kiln_engine::Result<Engine> {
    try_load(model, &Setup { taesd: Some(taesd), ..cpu() })
}

fn generate(engine: &mut Engine) -> GeneratedImage {
    images(engine, &request("a red apple", (72, 64), 2, 7)).remove(0)
}

/// TAESD decodes the denoiser's latents; the model's own autoencoder does not exist here.
#[test]
fn taesd_replaces_the_models_own_decoder() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures("models/sd1"), folder.path());
    std::fs::remove_file(folder.path().join("vae/diffusion_pytorch_model.safetensors")).unwrap();
    let taesd = fixtures("taesd/default");
    let generated = generate(&mut open(folder.path(), taesd.clone()).unwrap());
    assert_eq!((generated.width, generated.height), (72, 64));

    let latents = latents(std::slice::from_ref(&generated));
    let config = TinyConfig::from_json(&std::fs::read_to_string(taesd.join("config.json")).unwrap()).unwrap();
    let decoder = TinyDecoder::new(&config);
    let placement = Placement::new(Device::Cpu, DType::F32);
    load(decoder.segments(), open_component(&taesd).unwrap().as_ref(), &placement).unwrap();
    let image = decoder.decode(&latents).unwrap().affine(127.5, 127.5).unwrap().clamp(0., 255.).unwrap();
    let expected: Vec<f32> = image.permute((0, 2, 3, 1)).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(expected.len(), generated.rgb.len());
    assert!(generated.rgb.iter().zip(&expected).all(|(&found, expected)| (f32::from(found) - expected).abs() < 0.51));
    assert!(expected.iter().any(|&value| value > 0.0), "nothing is to be seen");
}

#[test]
fn other_files_are_refused_as_taesd() {
    let model = fixtures("models/sd1");
    let message = |taesd: PathBuf| open(&model, taesd).err().unwrap().to_string();
    let missing = message("/no/such.safetensors".into());
    assert!(missing.starts_with("/no/such.safetensors: not found; looked for `taesd`"), "{missing}");
    let kl = message(fixtures("models/sd1/vae"));
    assert!(kl.contains("`_class_name` is AutoencoderKL, expected AutoencoderTiny"), "{kl}");
    let kl = message(fixtures("models/sd1/vae/diffusion_pytorch_model.safetensors"));
    assert!(kl.contains("no TAESD that decodes, tensor `decoder.layers.0.weight` is missing"), "{kl}");
    let narrow = message(fixtures("taesd/default/diffusion_pytorch_model.safetensors"));
    assert!(narrow.contains("`decoder.layers.0.weight` has shape [8, 4, 3, 3], expected [64, 4, 3, 3]"), "{narrow}");
    let odd = message(fixtures("taesd/odd"));
    assert!(odd.contains("latents of 6 channels, each to 9x9 pixels"), "{odd}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taesd3.safetensors");
    let weight = Tensor::zeros((64, 16, 3, 3), DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("1.weight", weight)].into(), &path).unwrap();
    let wide = message(path);
    assert!(wide.contains("decodes latents of 16 channels, each to 8x8 pixels"), "{wide}");
    let path = folder.path().join("other.safetensors");
    candle_core::safetensors::save(&[("x", Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap())].into(), &path)
        .unwrap();
    assert!(message(path).contains("other.safetensors: is no TAESD that decodes"));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { drop(std::fs::copy(entry.path(), target)) }
    }
}
