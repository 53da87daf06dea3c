//! Activations on the processor.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Activation, OP};
use crate::cpu::View;
use crate::error::Result;
use crate::output::write_cpu;

/// Elements of a task.
const BLOCK: usize = 16 << 10;

pub(super) fn forward(x: &Tensor, function: Activation, out: Option<&Tensor>) -> Result<Tensor> {
    let input = View::new(x)?;
    write_cpu(OP, out, x.dims(), x.dtype(), &[x], |y| match function {
        Activation::Silu => map(&input, y, |x| x / (1.0 + (-x).exp())),
        Activation::QuickGelu => map(&input, y, |x| x / (1.0 + (-1.702 * x).exp())),
        Activation::GeluErf => map(&input, y, gelu_erf),
        Activation::Relu => map(&input, y, |x| x.max(0.0)),
    })
}

fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    y.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(y, x)| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = f(*x));
    });
}

/// `x / 2 (1 + erf(x / sqrt(2)))`.
pub(crate) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}
