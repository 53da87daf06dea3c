//! Modulated normalizations on the CPU: a row stays in the L1 cache between its passes.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP, RowNorm};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::for_every_isa;
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Elements of a task.
const BLOCK: usize = 16 << 10;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "x", self.x.dtype(), typed(self, out)).map(Some)
    }
}

fn typed<T: Element>(call: &Call<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let Call { x, norm, gamma, scale, shift, eps } = *call;
    let input = View::<T>::new(x)?;
    let c = x.dims().last().copied().unwrap_or(1).max(1);
    let factors = factors(gamma, scale, c)?;
    let shifts = shift.map_or_else(|| Ok(View::Converted(vec![0.0; c])), View::<f32>::new)?;
    let (rows, tokens) = ((BLOCK / c).max(1), call.rows().max(1));
    let inputs: Vec<&Tensor> = [Some(x), gamma, scale, shift].into_iter().flatten().collect();
    write::<T>(OP, out, x.dims(), &inputs, |y| {
        let blocks = y.par_chunks_mut(rows * c).zip(input.par_chunks(rows * c)).enumerate();
        blocks.for_each(|(block, (y, x))| {
            for (i, (y, x)) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)).enumerate() {
                let image = (block * rows + i) / tokens;
                normalize(norm, x, of_image(&factors, image, c), of_image(&shifts, image, c), eps as f32, y);
            }
        });
    })
}

/// `gamma (1 + scale)`, for each image if there is a scale for each.
fn factors(gamma: Option<&Tensor>, scale: Option<&Tensor>, c: usize) -> Result<Vec<f32>> {
    let gamma = View::<f32>::optional(gamma)?;
    let mut factors: Vec<f32> = match View::<f32>::optional(scale)? {
        Some(scale) => scale.iter().map(|scale| 1.0 + scale).collect(),
        None => vec![1.0; c],
    };
    if let Some(gamma) = gamma {
        for row in factors.chunks_exact_mut(c) {
            row.iter_mut().zip(&gamma[..]).for_each(|(factor, gamma)| *factor *= gamma);
        }
    }
    Ok(factors)
}

/// An image's row of `vectors`, which may be one for all.
fn of_image(vectors: &[f32], image: usize, c: usize) -> &[f32] {
    if vectors.len() == c { vectors } else { &vectors[image * c..][..c] }
}

for_every_isa! {
    /// One row. Elements are summed in sixteen columns, an order that depends on the length of the row alone.
    fn normalize<T: Element>(norm: RowNorm, x: &[T], factors: &[f32], shifts: &[f32], eps: f32, y: &mut [T]) {
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
        let mean = match norm {
            RowNorm::Layer => sum(x, |x| x) / count,
            RowNorm::Rms => 0.0,
        };
        let inverse = 1.0 / (sum(x, |x| (x - mean) * (x - mean)) / count + eps).sqrt();
        for (((y, x), factor), shift) in y.iter_mut().zip(x).zip(factors).zip(shifts) {
            *y = T::from_f32((x.to_f32() - mean) * inverse * factor + shift);
        }
    }
}
