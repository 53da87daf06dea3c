//! Layer normalisation on the processor: a row stays in the first-level cache between its three passes.

use candle_core::Tensor;
use rayon::prelude::*;

use super::OP;
use crate::cpu::View;
use crate::error::Result;
use crate::output::write_cpu;

/// Rows of a task.
const ROWS: usize = 16;

pub(super) fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64, out: Option<&Tensor>) -> Result<Tensor> {
    let (input, gamma_values, beta_values) = (View::new(x)?, View::new(gamma)?, View::new(beta)?);
    let c = gamma_values.len().max(1);
    write_cpu(OP, out, x.dims(), x.dtype(), &[x, gamma, beta], |y| {
        y.par_chunks_mut(ROWS * c).zip(input.par_chunks(ROWS * c)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                let mean = x.iter().sum::<f32>() / c as f32;
                let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / c as f32;
                let inverse = 1.0 / (variance + eps as f32).sqrt();
                for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(&*gamma_values).zip(&*beta_values) {
                    *y = (x - mean) * inverse * gamma + beta;
                }
            }
        });
    })
}
