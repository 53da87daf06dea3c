//! The images that tests/reference/patterns.py makes, and the values of compare.py.

use kiln_media::Rgb8Image;
use kiln_testkit::{fixtures, hashed};
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
