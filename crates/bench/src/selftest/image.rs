//! An image of a small model on the tested device, compared with one of the CPU in f32.

use std::ops::ControlFlow;
use std::time::Instant;

use candle_core::DType;
use kiln_compare::psnr;
use kiln_engine::{DTypeChoice, DeviceChoice, Engine, Event, ModelFolder, Request, Setup};
use serde::Serialize;

use super::proceed;
use crate::error::Result;

const PROMPT: &str = "a red apple";
const SEED: u64 = 42;
const STEPS: usize = 10;

/// The image of the tested device.
#[derive(Debug, Clone, Serialize)]
pub struct ImageReport {
    /// The name of the model.
    pub model: String,
    /// The peak signal-to-noise ratio against the image of the CPU in f32, in dB; `None` if they are equal, or if there is no
    /// image.
    pub psnr: Option<f64>,
    /// The least ratio that is allowed.
    pub bound: f64,
    /// Whether a second call gave the same bytes.
    pub is_repeatable: bool,
    /// How long the second call took: denoising and decoding.
    pub seconds: f64,
    /// Why there is no image.
    pub failure: Option<String>,
}

impl ImageReport {
    /// Whether there is an image that is close to the CPU's, and the same in both calls.
    pub fn has_passed(&self) -> bool {
        self.failure.is_none() && self.is_repeatable && self.psnr.is_none_or(|psnr| psnr >= self.bound)
    }
}

/// Draws the image on the device of `setup`, twice, and on the CPU.
pub(super) fn report(
    model: &ModelFolder,
    setup: &Setup,
    dtype: DType,
    watch: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<ImageReport> {
    // The least of docs/parity-cuda.md for 16 bits. In f32 only the order of sums differs.
    let bound = match dtype {
        DType::F16 => 47.0,
        DType::BF16 => 31.0,
        _ => 60.0,
    };
    let mut report =
        ImageReport { model: model.name(), psnr: None, bound, is_repeatable: false, seconds: 0.0, failure: None };
    let found = match draw(model, setup, 2) {
        Ok(found) => found,
        Err(error) => return Ok(ImageReport { failure: Some(error.to_string()), ..report }),
    };
    proceed(watch("the same image on the CPU"))?;
    let cpu = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
    let expected = draw(model, &cpu, 1)?;
    let ([(first, _), (second, seconds)], [(expected, _)]) = (found.as_slice(), expected.as_slice()) else {
        let failure = Some(format!("{} images, expected 2", found.len()));
        return Ok(ImageReport { failure, ..report });
    };
    (report.is_repeatable, report.seconds) = (first == second, *seconds);
    match psnr(second, expected) {
        Ok(ratio) => report.psnr = ratio.is_finite().then_some(ratio),
        Err(error) => report.failure = Some(error.to_string()),
    }
    Ok(report)
}

/// The bytes of the image and the seconds of the call, `calls` times.
fn draw(model: &ModelFolder, setup: &Setup, calls: usize) -> Result<Vec<(Vec<u8>, f64)>> {
    let request = Request { prompt: PROMPT.into(), seed: Some(SEED), steps: Some(STEPS), ..Request::default() };
    let job = request.resolve(model)?;
    let mut engine = Engine::load(model.clone(), setup, &mut |_| ControlFlow::Continue(()))?;
    let mut images = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        engine.txt2img(&job, &mut |event| {
            if let Event::Image(image) = event {
                images.push((image.rgb.clone(), start.elapsed().as_secs_f64()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use kiln_testkit::repository;

    use super::*;

    #[test]
    fn the_small_model_draws_the_same_image_on_the_cpu() {
        let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
        let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::Bf16, ..Setup::default() };
        let report = report(&model, &setup, DType::BF16, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(report.has_passed() && report.psnr.is_some_and(|psnr| psnr < 60.0), "{report:?}");
        let far = ImageReport { psnr: Some(30.0), ..report.clone() };
        let changing = ImageReport { is_repeatable: false, ..report.clone() };
        let missing = ImageReport { failure: Some("out of memory".into()), ..report };
        assert!(![far, changing, missing].iter().any(ImageReport::has_passed));
    }
}
