//! Layer normalization on the CPU: a row stays in the L1 cache between its three passes.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::for_every_isa;
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Rows of a task.
const ROWS: usize = 16;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gamma, beta, eps } = *self;
        dispatch!(OP, "x", x.dtype(), typed(x, gamma, beta, eps, out)).map(Some)
    }
}

fn typed<T: Element>(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64, out: Option<&Tensor>) -> Result<Tensor> {
    let input = View::<T>::new(x)?;
    let (gamma_values, beta_values) = (View::<f32>::new(gamma)?, View::<f32>::new(beta)?);
    let c = gamma_values.len().max(1);
    write::<T>(OP, out, x.dims(), &[x, gamma, beta], |y| {
        y.par_chunks_mut(ROWS * c).zip(input.par_chunks(ROWS * c)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                normalize(x, &gamma_values, &beta_values, eps as f32, y);
            }
        });
    })
}

for_every_isa! {
    /// One row. Elements are summed in sixteen columns, an order that depends on the length of the row alone.
    fn normalize<T: Element>(x: &[T], gamma: &[f32], beta: &[f32], eps: f32, y: &mut [T]) {
        #[inline(always)]
        fn sum<T: Element>(x: &[T], f: impl Fn(f32) -> f32) -> f32 {
            const COLUMNS: usize = 16;
            let mut sums = [0f32; COLUMNS];
            let (chunks, rest) = x.as_chunks::<COLUMNS>();
            for chunk in chunks {
                sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f(x.to_f32()));
            }
            sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += f(x.to_f32()));
            sums.iter().sum()
        }
        let count = x.len() as f32;
        let mean = sum(x, |x| x) / count;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / count;
        let inverse = 1.0 / (variance + eps).sqrt();
        for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
            *y = T::from_f32((x.to_f32() - mean) * inverse * gamma + beta);
        }
    }
}
