//! Linear multistep (Adams-Bashforth for uneven steps), from k-diffusion: the slope over the next step is the
//! polynomial through the last slopes.

use super::{Context, Sampler, slope};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

/// The number of slopes that are stored: diffusers' and k-diffusion's default.
const ORDER: usize = 4;

#[derive(Default)]
pub(crate) struct Lms {
    /// The last slopes, newest first.
    slopes: Vec<Tensor>,
}

impl Sampler for Lms {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let d = slope(x, &cx.denoise(x)?.x0, cx.point.sigma)?;
        self.slopes.insert(0, d);
        self.slopes.truncate(ORDER);
        // The order counts from the start of the schedule, also where img2img starts later. The slopes that were never
        // computed then count as zero, as in diffusers.
        let order = (cx.index + 1).min(ORDER);
        let nodes: Vec<f64> = (0..order).map(|k| cx.schedule.points()[cx.index - k].sigma).collect();
        let weights = (0..order).map(|k| lagrange_integral(&nodes, k, cx.point.sigma, cx.target.sigma));
        let slopes = weights.zip(&self.slopes);
        linear(&[(1.0, x)].into_iter().chain(slopes).collect::<Vec<_>>())
    }
}

/// The integral from `from` to `to` of the Lagrange polynomial that is 1 at node `k` and 0 at the others.
fn lagrange_integral(nodes: &[f64], k: usize, from: f64, to: f64) -> f64 {
    let polynomial = |tau: f64| -> f64 {
        let others = nodes.iter().enumerate().filter(|&(j, _)| j != k);
        others.map(|(_, node)| (tau - node) / (nodes[k] - node)).product()
    };
    // Gauss-Legendre quadrature with two points is exact up to the third power, which is sufficient here.
    let (middle, half) = ((from + to) / 2.0, (to - from) / 2.0);
    let offset = half / 3f64.sqrt();
    half * (polynomial(middle - offset) + polynomial(middle + offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lagrange_weights_are_adams_bashforth_on_even_steps() {
        let nodes = [3.0, 2.0, 1.0, 0.0];
        let expected = [55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0];
        for (k, expected) in expected.into_iter().enumerate() {
            assert!((lagrange_integral(&nodes, k, 3.0, 4.0) - expected).abs() < 1e-12);
        }
    }
}
