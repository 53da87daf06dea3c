//! Pictures in bf16 are the pictures in f32, to the eye.
#![allow(missing_docs)]

use std::ops::ControlFlow;

use kiln_engine::{DTypeChoice, DeviceChoice, Engine, Event, ModelFolder, Request, Setup};
use kiln_testkit::repository;

/// The least peak signal-to-noise ratio in dB; differences over 8 of 255 nearly everywhere would be 30.
const LEAST: f64 = 40.0;

fn picture(dtype: DTypeChoice, prompt: &str) -> Vec<u8> {
    let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
    let setup = Setup { device: DeviceChoice::Cpu, dtype, ..Setup::default() };
    let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let request = Request { prompt: prompt.into(), seed: Some(42), steps: Some(12), ..Request::default() };
    let job = request.resolve(engine.model()).unwrap();
    let mut pixels = Vec::new();
    let watch = &mut |event| {
        if let Event::Picture(picture) = event {
            pixels = picture.rgb;
        }
        Ok(ControlFlow::Continue(()))
    };
    engine.txt2img(&job, watch).unwrap();
    pixels
}

#[test]
fn bf16_draws_what_f32_draws() {
    for prompt in ["a red apple", "a rocket"] {
        let (wide, half) = (picture(DTypeChoice::F32, prompt), picture(DTypeChoice::Bf16, prompt));
        assert!(!wide.is_empty() && wide.len() == half.len());
        let squares: f64 = wide.iter().zip(&half).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        let psnr = 10.0 * (255.0f64.powi(2) * wide.len() as f64 / squares).log10();
        println!("{prompt}: {psnr:.1} dB");
        assert!(psnr > LEAST, "{prompt}: {psnr:.1} dB, expected over {LEAST} dB");
    }
}
