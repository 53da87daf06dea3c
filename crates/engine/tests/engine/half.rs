//! Images in bf16 are the images in f32, to the eye.

use kiln_compare::psnr;
use kiln_engine::{DTypeChoice, Request, Setup};
use kiln_testkit::repository;

use crate::support::{cpu, load, pixels};

/// The minimum peak signal-to-noise ratio in dB; differences above 8 of 255 almost everywhere would be 30.
const LEAST: f64 = 40.0;

#[test]
fn bf16_images_are_those_of_f32() {
    let image = |dtype, prompt: &str| {
        let mut engine = load(&repository().join("models/emoji"), &Setup { dtype, ..cpu() });
        let request = Request { prompt: prompt.into(), seed: Some(42), steps: Some(6), ..Request::default() };
        pixels(&mut engine, &request).remove(0)
    };
    let apple = image(DTypeChoice::F32, "a red apple");
    let rocket = image(DTypeChoice::F32, "a rocket");
    for (prompt, expected, other) in [("a red apple", &apple, &rocket), ("a rocket", &rocket, &apple)] {
        let ratio = psnr(&image(DTypeChoice::Bf16, prompt), expected).unwrap();
        println!("{prompt}: {ratio:.1} dB");
        assert!(ratio > LEAST, "{prompt}: {ratio:.1} dB, expected over {LEAST} dB");
        assert!(psnr(other, expected).unwrap() < LEAST / 2.0, "another image is not distinguished");
    }
}
