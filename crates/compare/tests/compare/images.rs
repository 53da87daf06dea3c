//! The images and weights that tests/reference/compare.py makes, and its values.

use candle_core::{Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_testkit::fixtures;
use serde_json::Value;

/// A value of the reference.
pub struct Case {
    pub size: [usize; 2],
    pub amplitude: i64,
    pub prompt: String,
    pub value: f64,
}

/// The values of a metric.
pub fn values(metric: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(fixtures("compare/values.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let side = |case: &Value, i: usize| case["size"][i].as_u64().unwrap() as usize;
    let case = |case: &Value| Case {
        size: [side(case, 0), side(case, 1)],
        amplitude: case["amplitude"].as_i64().unwrap_or(0),
        prompt: case["prompt"].as_str().unwrap_or_default().into(),
        value: case["value"].as_f64().unwrap(),
    };
    all[metric].as_array().unwrap().iter().map(case).collect()
}

/// MurmurHash3's finalizer of a 32-bit number.
fn hashed(number: u32) -> u32 {
    let x = (number ^ (number >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// A pattern of stripes.
pub fn pattern(width: usize, height: usize) -> Rgb8Image {
    let value = |i: usize| {
        let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
        ((3 * x + 5 * y * (c + 1) + x * y / 7 % 64) % 256) as u8
    };
    Rgb8Image::new(width, height, (0..3 * width * height).map(value).collect()).unwrap()
}

/// The image with noise of this amplitude.
pub fn noisy(image: &Rgb8Image, amplitude: i64) -> Rgb8Image {
    let noise = |i: usize| i64::from(hashed(i as u32)) % (2 * amplitude + 1) - amplitude;
    let value = |(i, &value): (usize, &u8)| (i64::from(value) + noise(i)).clamp(0, 255) as u8;
    Rgb8Image::new(image.width(), image.height(), image.data().iter().enumerate().map(value).collect()).unwrap()
}

/// The weights of a tensor of LPIPS.
pub fn weights(name: &str, shape: &[usize]) -> Tensor {
    let named = name.bytes().fold(0x811c_9dc5u32, |value, byte| (value ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let fan_in: usize = shape[1..].iter().product();
    let value = |i: usize| {
        let unit = (hashed(named.wrapping_add(i as u32)) >> 8) as f32 / (1 << 24) as f32;
        match name {
            _ if name.starts_with("lin") => unit,
            _ if name.ends_with("bias") => (unit - 0.5) * 0.25,
            _ => (unit - 0.5) * (24.0 / fan_in as f64).sqrt() as f32,
        }
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}
