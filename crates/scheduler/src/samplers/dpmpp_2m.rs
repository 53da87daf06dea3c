//! DPM-Solver++(2M): arXiv 2211.01095, algorithm 2.

use super::{Context, Sampler};
use crate::tensor::linear;
use crate::{Result, SecondOrder};
use candle_core::Tensor;

/// Below this many steps `lower_order_final` matters: diffusers' limit.
const SHORT: usize = 15;

#[derive(Default)]
pub(crate) struct Dpmpp2m {
    /// The image that the last step predicted, and its lambda.
    last: Option<(Tensor, f64)>,
}

impl Sampler for Dpmpp2m {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (s, t) = (cx.solver_point(cx.point), cx.solver_point(cx.target));
        let m0 = cx.denoise(x)?.x0;
        let last = self.last.replace((m0.clone(), s.lambda()));

        let h = t.lambda() - s.lambda();
        let phi = (-h).exp_m1();
        let first_order = [(t.sigma / s.sigma, x), (-t.alpha * phi, &m0)];
        let Some((m1, lambda_1)) = last.filter(|_| !needs_first_order(cx)) else {
            return linear(&first_order);
        };
        let r = (s.lambda() - lambda_1) / h;
        let d1 = linear(&[(1.0 / r, &m0), (-1.0 / r, &m1)])?;
        let weight = match cx.schedule.config().solver.second_order {
            SecondOrder::Midpoint => -t.alpha * 0.5 * phi,
            SecondOrder::Heun if h == 0.0 => 0.0,
            SecondOrder::Heun => t.alpha * (phi / h + 1.0),
        };
        linear(&[first_order[0], first_order[1], (weight, &d1)])
    }
}

/// Whether this step has first order. The last step has it where the solver asks for it, and always where the step ends
/// without noise: lambda is infinite there.
fn needs_first_order(cx: &Context<'_>) -> bool {
    let solver = &cx.schedule.config().solver;
    let steps = cx.schedule.points().len();
    let ends_early = solver.euler_at_final || (solver.lower_order_final && steps < SHORT) || cx.target.sigma == 0.0;
    solver.order == 1 || (cx.index + 1 == steps && ends_early)
}
