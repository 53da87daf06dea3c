//! Rotary position embeddings on the CPU, head by head.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP, RopePairs, Shapes};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::for_every_isa;
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "x", self.x.dtype(), typed(self, self.check()?, out)).map(Some)
    }
}

fn typed<T: Element>(call: &Call<'_>, shapes: Shapes, out: Option<&Tensor>) -> Result<Tensor> {
    let Shapes { s, head_dim, by_image, .. } = shapes;
    let Call { x, cos, sin, norm, num_heads, pairs } = *call;
    let (input, cosines, sines) = (View::<T>::new(x)?, View::<f32>::new(cos)?, View::<f32>::new(sin)?);
    let gamma = View::<f32>::optional(norm.map(|(gamma, _)| gamma))?;
    let eps = norm.map_or(0.0, |(_, eps)| eps as f32);
    let (half, c) = (head_dim / 2, (num_heads * head_dim).max(1));
    let inputs: Vec<&Tensor> =
        [Some(x), Some(cos), Some(sin), norm.map(|(gamma, _)| gamma)].into_iter().flatten().collect();
    write::<T>(OP, out, x.dims(), &inputs, |y| {
        y.par_chunks_mut(c).zip(input.par_chunks(c)).enumerate().for_each_init(
            || vec![0f32; head_dim],
            |buffer, (token, (y, x))| {
                let row = half * if by_image { token } else { token % s };
                let (cos, sin) = (&cosines[row..row + half], &sines[row..row + half]);
                for (y, x) in y.chunks_exact_mut(head_dim.max(1)).zip(x.chunks_exact(head_dim.max(1))) {
                    widen(x, gamma.as_deref(), eps, buffer);
                    turn(pairs, buffer, cos, sin, y);
                }
            },
        );
    })
}

for_every_isa! {
    /// A head in f32; normalized if there is a gamma. Elements are summed in sixteen columns.
    fn widen<T: Element>(x: &[T], gamma: Option<&[f32]>, eps: f32, values: &mut [f32]) {
        values.iter_mut().zip(x).for_each(|(value, x)| *value = x.to_f32());
        if let Some(gamma) = gamma {
            const COLUMNS: usize = 16;
            let mut sums = [0f32; COLUMNS];
            let (chunks, rest) = values.as_chunks::<COLUMNS>();
            for chunk in chunks {
                sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x * x);
            }
            sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x * x);
            let inverse = 1.0 / (sums.iter().sum::<f32>() / x.len() as f32 + eps).sqrt();
            values.iter_mut().zip(gamma).for_each(|(value, gamma)| *value = *value * inverse * gamma);
        }
    }
}

for_every_isa! {
    /// Rotates the pairs of a head.
    fn turn<T: Element>(pairs: RopePairs, x: &[f32], cos: &[f32], sin: &[f32], y: &mut [T]) {
        let angles = cos.iter().zip(sin);
        match pairs {
            RopePairs::Interleaved => {
                for ((y, x), (cos, sin)) in y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0).zip(angles) {
                    *y = [T::from_f32(x[0] * cos - x[1] * sin), T::from_f32(x[0] * sin + x[1] * cos)];
                }
            }
            RopePairs::Halves => {
                let (first, second) = x.split_at(cos.len());
                let (to_first, to_second) = y.split_at_mut(cos.len());
                let from = first.iter().zip(second).zip(angles);
                for ((to_first, to_second), ((a, b), (cos, sin))) in to_first.iter_mut().zip(to_second).zip(from) {
                    *to_first = T::from_f32(a * cos - b * sin);
                    *to_second = T::from_f32(a * sin + b * cos);
                }
            }
        }
    }
}
