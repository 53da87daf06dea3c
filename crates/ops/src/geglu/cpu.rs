//! GEGLU on the processor.

use candle_core::Tensor;
use rayon::prelude::*;

use super::OP;
use crate::activation::gelu_erf;
use crate::cpu::View;
use crate::error::Result;
use crate::output::write_cpu;

pub(super) fn forward(x: &Tensor, shape: &[usize], out: Option<&Tensor>) -> Result<Tensor> {
    let n = shape.last().copied().unwrap_or(0).max(1);
    let input = View::new(x)?;
    write_cpu(OP, out, shape, x.dtype(), &[x], |y| {
        y.par_chunks_mut(n).zip(input.par_chunks(2 * n)).for_each(|(y, x)| {
            let (values, gates) = x.split_at(n);
            for ((y, value), gate) in y.iter_mut().zip(values).zip(gates) {
                *y = value * gelu_erf(*gate);
            }
        });
    })
}
