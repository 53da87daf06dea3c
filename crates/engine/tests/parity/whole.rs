//! Whole pipelines: the final latents of every sampler, size, guidance and prompt of the fixtures.

use candle_core::{DType, Tensor};
use kiln_compare::psnr;
use kiln_engine::GeneratedImage;
use kiln_testkit::{Fixture, Parity, Target};

use crate::cases::{Case, EMOJI, bytes, final_latents, folder};
use crate::limits;
use crate::support::{from_env, images, latents, load};

/// Largest error of final latents in f32, in their standard deviations.
const LATENTS_BOUND: f64 = 1e-3;
/// The same of images from 0 to 255: one level of 255 where the standard deviation is 60.
const IMAGE_BOUND: f64 = 2e-2;

fn check(model: &str) {
    let target = Target::from_env();
    let (cases, fixture) = (Case::all(model), Fixture::open(&final_latents(model)));
    let mut engine = load(&folder(model), &from_env());
    let parity = Parity::new("pipeline", target.label(model));
    for case in &cases {
        let images = images(&mut engine, &case.request());
        assert_eq!(images.len(), case.images);
        let (found, expected) = (latents(&images), fixture.tensor(&case.name));
        if target.dtype == DType::F32 {
            parity.check(&case.name, &found, &expected, LATENTS_BOUND);
        }
        parity.check_similar(&case.name, &found, &expected, limits::run(model, &case.name, target.dtype));
        if let Some(expected) = fixture.get(&format!("{}.image", case.name)) {
            let name = format!("{} picture", case.name);
            let found: Vec<u8> = images.iter().flat_map(|image| image.rgb.clone()).collect();
            let (ratio, least) = (psnr(&found, &bytes(&expected)).unwrap(), limits::image(model, target.dtype));
            println!("{name}: PSNR {ratio:.1} dB, at least {least}");
            assert!(ratio >= least, "{name}: PSNR {ratio:.1} dB, expected at least {least}");
            if target.dtype == DType::F32 {
                let shape = (case.images, case.height, case.width, 3);
                let found = Tensor::from_vec(found, shape, expected.device()).unwrap();
                let expected = (expected.permute((0, 2, 3, 1)).unwrap() * 255.0).unwrap(); // (n, h, w, 3)
                parity.check(&name, &found, &expected, IMAGE_BOUND);
            }
        }
        for (channel, expected) in case.middle_rgb.into_iter().flatten().enumerate() {
            let found = middle_mean(&images[0], channel);
            let name = &case.name;
            assert!((found - expected).abs() < 0.01, "{name}: channel {channel} is {found}, expected {expected}");
        }
    }
}

/// The mean of a channel over the middle half of an image, 0 to 1.
fn middle_mean(image: &GeneratedImage, channel: usize) -> f64 {
    let (w, h) = (image.width, image.height);
    let pixels = (h / 4..3 * h / 4).flat_map(|row| (w / 4..3 * w / 4).map(move |column| (row * w + column) * 3));
    let values: Vec<f64> = pixels.map(|at| f64::from(image.rgb[at + channel]) / 255.0).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn sd1() {
    check("sd1");
}

#[test]
fn sd2v() {
    check("sd2v");
}

#[test]
fn sdxl() {
    check("sdxl");
}

/// The model that comes with Kiln, and its colors.
#[test]
fn emoji() {
    check(EMOJI);
}
