//! The upscalers against spandrel: small random ones in every layout of files, and two real ones.
#![allow(missing_docs)]

use std::path::Path;

use candle_core::{DType, Tensor};
use kiln_testkit::{Fixture, Parity, Target, fixtures, shared_data};
use kiln_upscale::{CompactActivation, NetworkConfig, StripRows, Upscaler};
use kiln_weights::{Checkpoint, Placement};

/// Largest error in standard deviations: f32, f16, bf16.
const BOUNDS: [f64; 3] = [1e-4, 1e-2, 1e-1];

fn open(path: &Path, activation: Option<CompactActivation>) -> Upscaler {
    Upscaler::from_source(Checkpoint::open(path).unwrap(), activation).unwrap()
}

fn check(name: &str, upscaler: &Upscaler, image: &Tensor, expected: &Tensor) {
    let target = Target::from_env();
    upscaler.load(&Placement::new(target.device.clone(), target.dtype)).unwrap();
    let [f32, f16, bf16] = BOUNDS;
    for (way, strips) in [("whole", StripRows::Whole), ("strips of 2 rows", StripRows::Rows(2))] {
        let parity = Parity::new("upscale", target.label(way));
        let found = upscaler.forward(&target.tensor(image), strips).unwrap();
        parity.check(name.split('.').next().unwrap_or(name), &found, expected, target.bound(f32, f16, bf16));
    }
}

fn small(name: &str, activation: Option<CompactActivation>, description: &str) {
    let upscaler = open(&fixtures("upscale").join(name), activation);
    assert_eq!(upscaler.config().to_string(), description);
    let fixture = Fixture::open("upscale/results.safetensors");
    let (image, result) = (fixture.tensor(&format!("{name}.image")), fixture.tensor(&format!("{name}.result")));
    assert_eq!(result.dims()[3], upscaler.scale() * image.dims()[3]);
    check(name, &upscaler, &image, &result);
}

#[test]
fn names_of_esrgans_authors() {
    small("original_x4.pth", None, "RRDBNet x4, 2 blocks, 8 features, growth 4");
    small("original_x1.safetensors", None, "RRDBNet x1, 2 blocks, 8 features, growth 4");
    small("original_x8.safetensors", None, "RRDBNet x8, 2 blocks, 8 features, growth 4");
}

#[test]
fn names_of_bsrgan() {
    small("trunk_x2.pth", None, "RRDBNet x2, 2 blocks, 8 features, growth 4");
}

#[test]
fn names_of_basicsr() {
    small("basicsr_x4.safetensors", None, "RRDBNet x4, 2 blocks, 8 features, growth 4");
}

/// Sides that do not suit a network: spandrel's call pads images.
#[test]
fn images_are_padded_as_by_spandrel() {
    let fixture = Fixture::open("upscale/padded.safetensors");
    let (x2, x1, x4) = ("params_ema_x2.pth", "params_x1.safetensors", "original_x4.pth");
    for (name, sizes) in
        [(x2, &["10x11", "25x19", "6x4", "3x2", "1x5"][..]), (x1, &["14x9", "1x3"]), (x4, &["1x5", "1x1"])]
    {
        let upscaler = open(&fixtures("upscale").join(name), None);
        for size in sizes {
            let tensor = |kind: &str| fixture.tensor(&format!("{name}.{size}.{kind}"));
            check(&format!("{size} {name}"), &upscaler, &tensor("image"), &tensor("result"));
        }
    }
}

/// With squares of pixels that go in, and weights in one of several dictionaries. The results of `params_ema_x2` are those of
/// [`images_are_padded_as_by_spandrel`].
#[test]
fn dictionaries_of_real_esrgan() {
    let averaged = open(&fixtures("upscale/params_ema_x2.pth"), None);
    let description = "RRDBNet x2, 2 blocks, 8 features, growth 4, pixel unshuffle 2";
    assert_eq!(averaged.config().to_string(), description);
    small("params_x1.safetensors", None, "RRDBNet x1, 2 blocks, 8 features, growth 4, pixel unshuffle 4");
}

#[test]
fn compact_networks() {
    small("compact_x4.safetensors", None, "SRVGGNetCompact x4, 3 convolutions, 8 features, PReLU");
    small("compact_x2.pth", None, "SRVGGNetCompact x2, 3 convolutions, 8 features, PReLU");
    small("compact_x3_gray.safetensors", None, "SRVGGNetCompact x3, 3 convolutions, 8 features, PReLU");
}

#[test]
fn compact_networks_whose_activation_the_caller_knows() {
    let leaky = Some(CompactActivation::LeakyRelu);
    small("compact_x2_leaky.safetensors", leaky, "SRVGGNetCompact x2, 3 convolutions, 8 features, LeakyReLU");
    let relu = Some(CompactActivation::Relu);
    small("compact_x1_relu.safetensors", relu, "SRVGGNetCompact x1, 3 convolutions, 8 features, ReLU");
    let error = Upscaler::open(&fixtures("upscale/compact_x1_relu.safetensors")).err().unwrap().to_string();
    assert!(error.contains("`body.1.weight`") && error.contains("ReLU or LeakyReLU"), "{error}");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_real_weights() {
    let fixture = Fixture::open("upscale/real.safetensors");
    for (name, description) in [
        ("RealESRGAN_x4plus_anime_6B.fp16", "RRDBNet x4, 6 blocks, 64 features, growth 32"),
        ("realesr-animevideov3-x4", "SRVGGNetCompact x4, 16 convolutions, 64 features, PReLU"),
    ] {
        let upscaler = open(&shared_data("esrgan").join(format!("{name}.safetensors")), None);
        assert_eq!(upscaler.config().to_string(), description);
        check(name, &upscaler, &fixture.tensor("image"), &fixture.tensor(name));
    }
}

#[test]
fn results_are_limited_and_nan_stays() {
    let upscaler = open(&fixtures("upscale/compact_x2.pth"), None);
    assert!(matches!(upscaler.config(), NetworkConfig::Compact(_)));
    upscaler.load(&Placement::new(candle_core::Device::Cpu, DType::F32)).unwrap();
    let bright = Tensor::full(50f32, (1, 3, 4, 4), &candle_core::Device::Cpu).unwrap();
    let nan = Tensor::full(f32::NAN, (1, 3, 4, 4), &candle_core::Device::Cpu).unwrap();
    let values = |image: &Tensor| {
        let result = upscaler.forward(image, StripRows::Whole).unwrap();
        result.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert!(values(&bright).iter().all(|value| (0.0..=1.0).contains(value)));
    assert!(values(&nan).iter().all(|value| value.is_nan()));
}
