//! Previews: what the denoiser predicts, as small images without the decoder.

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_models::LatentRgb;
use kiln_ops::ByteRounding;

use crate::error::Result;

/// The least time between two previews of a batch: whoever looks at them sees no more, and steps of milliseconds keep their speed.
const BETWEEN: Duration = Duration::from_millis(200);

/// When a batch is previewed.
#[derive(Debug)]
pub(super) struct PreviewPace {
    every: usize,
    last: Option<Instant>,
    /// How many there were, and the time that they and their receiver took.
    cost: (usize, Duration),
}

impl PreviewPace {
    /// After every so many evaluations, if enough time has passed.
    pub(super) fn new(every: usize) -> Self {
        Self { every: every.max(1), last: None, cost: Default::default() }
    }

    /// Whether evaluation `call` of `calls`, from 1, is previewed. After the last one comes the image itself.
    pub(super) fn wants(&self, call: usize, calls: usize) -> bool {
        call < calls && call.is_multiple_of(self.every) && self.last.is_none_or(|last| last.elapsed() >= BETWEEN)
    }

    /// The batch was previewed, which began at `begin`.
    pub(super) fn done(&mut self, begin: Instant) {
        self.last = Some(Instant::now());
        self.cost = (self.cost.0 + 1, self.cost.1 + begin.elapsed());
    }

    /// Logs what all previews of a batch took of `all`, the time of its steps.
    pub(super) fn log(&self, all: Duration) {
        let (count, cost) = self.cost;
        let part = 100.0 * cost.as_secs_f64() / all.as_secs_f64().max(1e-9);
        tracing::debug!("{count} previews took {:.1} ms, {part:.2} % of the steps", 1e3 * cost.as_secs_f64());
    }
}

/// The colors of latents `(n, c, h, w)` in f32, where `colors` has a row for each of the `c` channels.
pub(crate) fn images(latents: &Tensor, colors: &LatentRgb) -> Result<Vec<Rgb8Image>> {
    let (n, c, h, w) = latents.dims4()?;
    let latents = latents.to_device(&Device::Cpu)?.reshape((n, c, h * w))?.to_vec3::<f32>()?;
    let byte = |value| ByteRounding::Nearest.byte(value);
    let image = |planes: Vec<Vec<f32>>| {
        let mut pixels = vec![colors.offset; h * w];
        for (plane, row) in planes.iter().zip(&colors.factors) {
            for (pixel, value) in pixels.iter_mut().zip(plane) {
                for (color, factor) in pixel.iter_mut().zip(row) {
                    *color += factor * value;
                }
            }
        }
        Ok(Rgb8Image::new(w, h, pixels.into_iter().flatten().map(byte).collect())?)
    };
    latents.into_iter().map(image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_come_at_their_steps_and_not_too_often() {
        let mut pace = PreviewPace::new(3);
        assert_eq!((1..=9).filter(|call| pace.wants(*call, 9)).collect::<Vec<_>>(), [3, 6]);
        pace.done(Instant::now());
        assert!(!pace.wants(6, 9), "it is too early");
        pace.last = Instant::now().checked_sub(BETWEEN);
        assert!(pace.wants(6, 9));
    }

    #[test]
    fn a_pixel_is_the_sum_of_its_channels() {
        let latents = Tensor::from_vec(vec![1.0f32, -1.0, 0.5, 2.0], (1, 2, 1, 2), &Device::Cpu).unwrap();
        let colors = LatentRgb { factors: vec![[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], offset: [0.0, -0.5, 0.0] };
        let found = images(&latents, &colors).unwrap();
        assert_eq!(found[0].size(), (2, 1));
        let unit = |value: f32| ByteRounding::Nearest.byte(value);
        assert_eq!(found[0].data(), [1.0, 0.0, 0.75, -1.0, 1.5, 0.5].map(unit));
    }
}
