//! Improved PNDM: arXiv 2204.13902, equation 4 and appendix H.2: Adams-Bashforth with Karras' slopes. The coefficients
//! are those of even steps, for any steps.

use super::{Context, Sampler, slope};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Ipndm {
    /// The last slopes, newest first, at most four.
    slopes: Vec<Tensor>,
}

impl Sampler for Ipndm {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let x0 = cx.denoise(x)?.x0;
        if cx.target.sigma == 0.0 {
            return Ok(x0);
        }
        self.slopes.insert(0, slope(x, &x0, cx.point.sigma)?);
        self.slopes.truncate(4);
        let h = cx.target.sigma - cx.point.sigma;
        let weights = adams_bashforth(self.slopes.len()).iter().map(|weight| weight * h);
        linear(&[(1.0, x)].into_iter().chain(weights.zip(&self.slopes)).collect::<Vec<_>>())
    }
}

/// The coefficients of the Adams-Bashforth method of order 1 to 4 for even steps, for the newest slope first.
pub(super) fn adams_bashforth(order: usize) -> &'static [f64] {
    match order {
        0 | 1 => &[1.0],
        2 => &[3.0 / 2.0, -1.0 / 2.0],
        3 => &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
        _ => &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
    }
}
