//! Files that are no upscalers, or broken ones, and images that do not fit.
#![allow(missing_docs)]

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use kiln_testkit::fixtures;
use kiln_upscale::{Error, StripRows, Upscaler};
use kiln_weights::{MapSource, Placement};

fn tensors(name: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(fixtures("upscale").join(name), &Device::Cpu).unwrap()
}

/// The error for the file's tensors after `change`.
fn refused(name: &str, change: impl FnOnce(&mut HashMap<String, Tensor>)) -> Error {
    let mut tensors = tensors(name);
    change(&mut tensors);
    Upscaler::from_source(MapSource::from_iter(tensors), None).err().expect("an error")
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn other_networks_are_named() {
    let error = Upscaler::open(&fixtures("models/sd1/unet/diffusion_pytorch_model.safetensors")).err().unwrap();
    assert!(matches!(error, Error::NotAnUpscaler { .. }));
    let text = error.to_string();
    assert!(text.contains("diffusion_pytorch_model.safetensors") && text.contains("tensors, such as `"), "{text}");
    let empty = Upscaler::from_source(MapSource::default(), None).err().unwrap().to_string();
    assert!(empty.contains("it has no tensors"), "{empty}");
}

#[test]
fn missing_tensors_are_named_as_the_file_would_name_them() {
    let text = refused("original_x8.safetensors", |tensors| drop(tensors.remove("model.1.sub.1.RDB2.conv3.0.bias")));
    assert!(text.to_string().contains("tensor `model.1.sub.1.RDB2.conv3.0.bias` of RRDBNet x8"), "{text}");
    let text = refused("params_x1.safetensors", |tensors| drop(tensors.remove("params.conv_body.weight")));
    assert!(text.to_string().contains("`params.conv_body.weight`"), "{text}");
    let text = refused("basicsr_x4.safetensors", |tensors| drop(tensors.remove("conv_last.weight")));
    assert!(text.to_string().contains("tensor `conv_last.weight` of RRDBNet is missing"), "{text}");
    let text = refused("compact_x4.safetensors", |tensors| drop(tensors.remove("body.4.bias")));
    assert!(text.to_string().contains("`body.4.bias`"), "{text}");
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let wrong = |name: &'static str, key: &'static str, shape: &'static [usize]| {
        refused(name, |tensors| drop(tensors.insert(key.into(), zeros(shape)))).to_string()
    };
    let text = wrong("basicsr_x4.safetensors", "body.1.rdb3.conv5.weight", &[8, 24, 3, 1]);
    assert!(text.contains("`body.1.rdb3.conv5.weight`") && text.contains("expected [8, 24, 3, 3]"), "{text}");
    let text = wrong("basicsr_x4.safetensors", "conv_first.weight", &[8, 3, 5, 5]);
    assert!(text.contains("has shape [8, 3, 5, 5], expected (out, in, 3, 3)"), "{text}");
    let text = wrong("basicsr_x4.safetensors", "conv_first.weight", &[70000, 3, 3, 3]);
    assert!(text.contains("with 1 to 65536 channels"), "{text}");
    let text = wrong("basicsr_x4.safetensors", "conv_last.weight", &[0, 8, 3, 3]);
    assert!(text.contains("`conv_last.weight`"), "{text}");
    let text = wrong("compact_x4.safetensors", "body.8.weight", &[40, 8, 3, 3]);
    assert!(text.contains("(3 s s, 8, 3, 3)"), "{text}");
    // Squares of 16 pixels go in, and the size is doubled once: the result would be smaller than the image.
    let text = refused("params_x1.safetensors", |tensors| {
        for kind in ["weight", "bias"] {
            for i in [1, 2] {
                tensors.remove(&format!("params.conv_up{i}.{kind}"));
            }
        }
    });
    assert!(text.to_string().contains("`params.conv_up1.weight`"), "{text}");
}

#[test]
fn variants_with_other_layers_are_refused() {
    let text = refused("original_x8.safetensors", |tensors| {
        tensors.insert("model.1.sub.0.RDB1.conv1x1.weight".into(), zeros(&[4, 8, 1, 1]));
    });
    assert!(text.to_string().contains("`model.1.sub.0.RDB1.conv1x1.weight` belongs to no part of RRDBNet"), "{text}");
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let upscaler = Upscaler::open(&fixtures("upscale/basicsr_x4.safetensors")).unwrap();
    let message = |shape: &[usize]| upscaler.forward(&zeros(shape), StripRows::Whole).unwrap_err().to_string();
    assert_eq!(message(&[1, 4, 8, 8]), "the upscaler's input has shape [1, 4, 8, 8], expected (b, 3, h, w)");
    assert!(message(&[1, 3, 0, 8]).contains("[1, 3, 0, 8]"));
    assert!(message(&[3, 8, 8]).contains("[3, 8, 8]"));
    assert!(message(&[1, 3, 8, 8]).contains("segment `conv_first` has no weights yet"));
    upscaler.load(&Placement::new(Device::Cpu, DType::F32)).unwrap();
    assert!(upscaler.forward(&zeros(&[1, 3, 1, 1]), StripRows::Rows(0)).is_ok());
}
