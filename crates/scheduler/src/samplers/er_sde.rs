//! Extended reverse-time SDE, order 3: arXiv 2309.06169, algorithm 3 with alpha 1 and the paper's fifth noise function.

use super::{Context, Sampler};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

/// The number of points of each numerical integral, from the authors' code.
const POINTS: usize = 200;

#[derive(Default)]
pub(crate) struct ErSde {
    /// The noise levels of the last steps, newest first, at most two.
    sigmas: Vec<f64>,
    /// The image that the last step predicted, and the slope of the predicted images at that point.
    last: Option<(Tensor, Option<Tensor>)>,
}

impl Sampler for ErSde {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        // Levels are ratios of noise to signal.
        let (s, t, alpha) = (cx.point.ratio(), cx.target.ratio(), cx.target.alpha);
        let x0 = cx.denoise(x)?.x0;
        if t == 0.0 {
            return Ok(x0);
        }
        let r = noise_function(t) / noise_function(s);
        let mut sum = linear(&[(alpha / cx.point.alpha * r, x), (alpha * (1.0 - r), &x0)])?;

        let (dt, width) = (t - s, (s - t) / POINTS as f64);
        let integral = |f: &dyn Fn(f64) -> f64| -> f64 {
            let values = (0..POINTS).map(|i| t + i as f64 * width).map(|sigma| f(sigma) / noise_function(sigma));
            values.sum::<f64>() * width * noise_function(t)
        };
        let mut slope = None;
        if let (Some((x0_last, slope_last)), Some(&s_last)) = (&self.last, self.sigmas.first()) {
            let d = linear(&[(1.0 / (s - s_last), &x0), (-1.0 / (s - s_last), x0_last)])?;
            sum = linear(&[(1.0, &sum), (alpha * (dt + integral(&|_| 1.0)), &d)])?;
            if let (Some(d_last), Some(&s_last_2)) = (slope_last, self.sigmas.get(1)) {
                let curve = alpha * ((dt.powi(2) / 2.0 + integral(&|sigma| sigma - s)) * 2.0 / (s - s_last_2));
                sum = linear(&[(1.0, &sum), (curve, &d), (-curve, d_last)])?;
            }
            slope = Some(d);
        }
        self.last = Some((x0, slope));
        self.sigmas.insert(0, s);
        self.sigmas.truncate(2);
        cx.with_noise(&sum, alpha * (t.powi(2) - (s * r).powi(2)).max(0.0).sqrt())
    }
}

/// The noise of the reverse SDE as a function of the noise level: the paper's equation for `phi` in section 3.3.
fn noise_function(sigma: f64) -> f64 {
    sigma * (sigma.powf(0.3).exp() + 10.0)
}
