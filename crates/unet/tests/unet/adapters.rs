//! Feature maps of T2I-Adapters compared with diffusers, map by map.

use candle_core::{DType, Device, Tensor};
use kiln_testkit::{Fixture, Parity, TinyAdapter, control_pixels};
use kiln_unet::{AdapterConfig, T2iAdapter};
use kiln_weights::{MapSource, Placement, load};

/// Largest error of a map in f32, in standard deviations.
const BOUND: f64 = 1e-4;

fn open(tiny: TinyAdapter) -> T2iAdapter {
    let adapter = T2iAdapter::new(AdapterConfig::from_json(&tiny.config().to_string()).unwrap());
    load(adapter.segments(), &MapSource::from_iter(tiny.tensors()), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    adapter
}

/// The control image.
fn pixels(width: usize, height: usize) -> Tensor {
    let values: Vec<f32> = control_pixels(width, height).iter().map(|&value| f32::from(value) / 255.0).collect();
    let pixels = Tensor::from_vec(values, (1, height, width, 3), &Device::Cpu).unwrap();
    pixels.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap()
}

#[test]
fn features_are_diffusers() {
    let fixture = Fixture::open("adapters.safetensors");
    for (form, width, height) in [("full", 72, 40), ("light", 72, 40), ("full_xl", 80, 48)] {
        let features = open(TinyAdapter::new(form, 0)).forward(&pixels(width, height)).unwrap();
        let parity = Parity::new("adapters", format!("{form} f32"));
        assert_eq!(features.len(), 4);
        for (i, found) in features.iter().enumerate() {
            let found = found.permute((0, 3, 1, 2)).unwrap();
            parity.check(&format!("features.{i}"), &found, &fixture.tensor(&format!("features.{form}.{i}")), BOUND);
        }
    }
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let message = |form: &'static str, image: &Tensor| {
        open(TinyAdapter::new(form, 0)).forward(image).map(drop).unwrap_err().to_string()
    };
    assert!(message("full", &pixels(60, 40)).contains("(b, 3, 8 h, 8 w)"));
    assert!(message("full_xl", &pixels(72, 48)).contains("(b, 3, 16 h, 16 w)"));
    assert!(message("gray", &pixels(64, 64)).contains("(b, 1, 8 h, 8 w)"));
}
