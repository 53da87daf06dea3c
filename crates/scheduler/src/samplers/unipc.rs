//! UniPC: arXiv 2302.04867, algorithms 5 to 8 (multistep, data prediction).
//!
//! Each evaluation first corrects the step that led to it (UniC), then predicts the next one (UniP). Both are the same
//! sum over differences of predicted images; the corrector's includes the newest one.

use super::{Context, Sampler};
use crate::tensor::linear;
use crate::{Point, Result, UniPcScale};
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct UniPc {
    /// The predicted images and their points, newest first, at most `order`.
    images: Vec<(Tensor, Point)>,
    /// The latents at the start of the last step, and the order of that step.
    last: Option<(Tensor, usize)>,
}

impl Sampler for UniPc {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let solver = cx.schedule.config().solver.clone();
        let image = cx.denoise(x)?.x0;
        let (point, target) = (cx.solver_point(cx.point), cx.solver_point(cx.target));
        let x = match self.last.take() {
            Some((start, order)) if !solver.disable_corrector.contains(&(cx.index - 1)) => {
                update(&start, &self.images[..order], Some(&image), point, solver.scale)?
            }
            _ => x.clone(),
        };
        self.images.insert(0, (image, point));
        self.images.truncate(solver.order);

        let left = cx.schedule.points().len() - cx.index;
        let order = if solver.lower_order_final { self.images.len().min(left) } else { self.images.len() };
        let next = update(&x, &self.images[..order], None, target, solver.scale)?;
        self.last = Some((x, order));
        Ok(next)
    }
}

/// The step from the newest of `images` to `t`. With `arrived`, the image predicted at `t`, it is the corrector.
fn update(
    x: &Tensor,
    images: &[(Tensor, Point)],
    arrived: Option<&Tensor>,
    t: Point,
    scale: UniPcScale,
) -> Result<Tensor> {
    let (m0, s) = &images[0];
    let h = t.lambda() - s.lambda();
    let phi_1 = (-h).exp_m1();
    let b = match scale {
        UniPcScale::Bh1 => -h,
        UniPcScale::Bh2 => phi_1,
    };
    let mut terms = vec![(t.sigma / s.sigma, x), (-t.alpha * phi_1, m0)];
    // At the end, without noise, h is infinite, and a step of zero length has no differences: first order.
    if h.is_finite() && h != 0.0 {
        let ratios: Vec<f64> = images[1..].iter().map(|(_, p)| (p.lambda() - s.lambda()) / h).collect();
        let others = images[1..].iter().map(|(m, _)| m).zip(ratios.iter().copied());
        let nodes: Vec<(&Tensor, f64)> = others.chain(arrived.map(|m| (m, 1.0))).collect();
        let r: Vec<f64> = nodes.iter().map(|&(_, r)| r).collect();
        for ((m, r), rho) in nodes.into_iter().zip(weights(&r, -h, b)) {
            let factor = t.alpha * b * rho / r;
            terms.push((-factor, m));
            terms[1].0 += factor;
        }
    }
    linear(&terms)
}

/// The weights of the differences: the solution of `sum_k r_k^(i-1) rho_k = i! phi_(i+1)(hh) hh / B`. A single one is
/// 1/2 for any `h` (the paper's remark after theorem 3.1).
fn weights(r: &[f64], hh: f64, b: f64) -> Vec<f64> {
    if r.len() == 1 {
        return vec![0.5];
    }
    let mut phi = hh.exp_m1() / hh - 1.0;
    let mut factorial = 1.0;
    let mut rows = Vec::with_capacity(r.len());
    for i in 0..r.len() {
        let mut row: Vec<f64> = r.iter().map(|r| r.powi(i as i32)).collect();
        row.push(phi * factorial / b);
        rows.push(row);
        factorial *= (i + 2) as f64;
        phi = phi / hh - 1.0 / factorial;
    }
    solve(rows)
}

/// Gauss-Jordan elimination of a system of at most three rows, with the right side last in each. It is a Vandermonde
/// system with different nodes, so no pivot is zero.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    for i in 0..rows.len() {
        let pivot: Vec<f64> = rows[i].iter().map(|value| value / rows[i][i]).collect();
        for (j, row) in rows.iter_mut().enumerate() {
            let factor = if j == i { 0.0 } else { row[i] };
            row.iter_mut().zip(&pivot).for_each(|(value, p)| *value -= factor * p);
        }
        rows[i] = pivot;
    }
    rows.into_iter().map(|row| row[row.len() - 1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solves() {
        // x + y + z = 6, x + 2y + 3z = 14, x + 4y + 9z = 36
        let rows = vec![vec![1.0, 1.0, 1.0, 6.0], vec![1.0, 2.0, 3.0, 14.0], vec![1.0, 4.0, 9.0, 36.0]];
        let found = solve(rows);
        assert!(found.iter().zip([1.0, 2.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }
}
