//! Diffusion exponential integrator sampler: arXiv 2204.13902, the multistep form with polynomials in `log rho`
//! (appendix B.3), where `rho = sigma / alpha`. The polynomial through the last noises is integrated exactly.

use super::{Context, Sampler};
use crate::tensor::linear;
use crate::{Point, Result};
use candle_core::Tensor;

/// Below this many steps `lower_order_final` matters: diffusers' limit.
const SHORT: usize = 15;

#[derive(Default)]
pub(crate) struct Deis {
    /// The noise predictions of the last steps and their `log rho`, newest first, at most `order`.
    noises: Vec<(Tensor, f64)>,
}

impl Sampler for Deis {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (s, t) = (cx.solver_point(cx.point), cx.solver_point(cx.target));
        let solver = &cx.schedule.config().solver;
        let (most, steps) = (solver.order, cx.schedule.points().len());
        // The order is one less in the last step but one of a short schedule, and one in the last.
        let left = if solver.lower_order_final && steps < SHORT { steps - cx.index } else { most };

        let x0 = cx.denoise(x)?.x0;
        let eps = linear(&[(1.0 / s.sigma, x), (-s.alpha / s.sigma, &x0)])?;
        self.noises.insert(0, (eps, -s.lambda()));
        self.noises.truncate(most);
        let order = if t.sigma == 0.0 { 1 } else { self.noises.len().min(left) };

        let nodes: Vec<f64> = self.noises[..order].iter().map(|(_, log_rho)| *log_rho).collect();
        let weights = (0..order).map(|k| t.alpha * (integral(&nodes, k, rho(t)) - integral(&nodes, k, rho(s))));
        let noises = weights.zip(self.noises.iter().map(|(eps, _)| eps));
        linear(&[(t.alpha / s.alpha, x)].into_iter().chain(noises).collect::<Vec<_>>())
    }
}

fn rho(point: Point) -> f64 {
    point.sigma / point.alpha
}

/// The integral from 0 to `rho` of the polynomial in `log rho` that is 1 at node `k` and 0 at the others. There are at
/// most two others.
fn integral(nodes: &[f64], k: usize, rho: f64) -> f64 {
    if rho == 0.0 {
        return 0.0;
    }
    let others: Vec<f64> = nodes.iter().enumerate().filter(|&(j, _)| j != k).map(|(_, &node)| node).collect();
    let scale: f64 = others.iter().map(|node| nodes[k] - node).product();
    let log = rho.ln();
    // The integral of `log^n` is `rho` times these terms.
    let (first, second) = (log - 1.0, log * log - 2.0 * log + 2.0);
    let polynomial = match others[..] {
        [] => 1.0,
        [c] => first - c,
        [c, d, ..] => second - (c + d) * first + c * d,
    };
    rho * polynomial / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_are_integrated_exactly() {
        let nodes = [0.3, 1.1, 1.9];
        for order in 1..=3 {
            for k in 0..order {
                let value = |rho: f64| -> f64 {
                    let others = (0..order).filter(|&j| j != k);
                    others.map(|j| (rho.ln() - nodes[j]) / (nodes[k] - nodes[j])).product()
                };
                // The midpoint rule.
                let (from, to, n) = (0.5, 4.0, 20_000);
                let width = (to - from) / f64::from(n);
                let sum: f64 = (0..n).map(|i| value(from + (f64::from(i) + 0.5) * width) * width).sum();
                let found = integral(&nodes[..order], k, to) - integral(&nodes[..order], k, from);
                assert!((found - sum).abs() < 1e-7, "order {order}, node {k}: {found} for {sum}");
            }
        }
    }
}
