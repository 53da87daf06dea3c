//! Gated residual connections on the CPU.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
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
    let Call { x, gate, y } = *call;
    let (inputs, branch, gates) = (View::<T>::new(x)?, View::<T>::new(y)?, View::<f32>::new(gate)?);
    let c = x.dims().last().copied().unwrap_or(1).max(1);
    let (rows, tokens) = ((BLOCK / c).max(1), (call.image() / c).max(1));
    let limit = super::limit(T::DTYPE);
    write::<T>(OP, out, x.dims(), &[x, gate, y], |result| {
        let blocks = result.par_chunks_mut(rows * c).zip(inputs.par_chunks(rows * c)).zip(branch.par_chunks(rows * c));
        blocks.enumerate().for_each(|(block, ((result, x), y))| {
            let rows_of = result.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(y.chunks_exact(c));
            for (i, ((result, x), y)) in rows_of.enumerate() {
                let start = if gates.len() == c { 0 } else { (block * rows + i) / tokens * c };
                add(x, &gates[start..start + c], y, limit, result);
            }
        });
    })
}

for_every_isa! {
    fn add<T: Element>(x: &[T], gate: &[f32], y: &[T], limit: f32, result: &mut [T]) {
        for (((result, x), gate), y) in result.iter_mut().zip(x).zip(gate).zip(y) {
            *result = T::from_f32((x.to_f32() + gate * y.to_f32()).clamp(-limit, limit));
        }
    }
}
