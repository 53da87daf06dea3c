//! GEGLU on the processor.

use candle_core::Tensor;
use rayon::prelude::*;

use super::OP;
use crate::cpu::math::{for_every_isa, gelu_erf};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

pub(super) fn forward(x: &Tensor, shape: &[usize], out: Option<&Tensor>) -> Result<Tensor> {
    dispatch!(OP, "x", x.dtype(), typed(x, shape, out))
}

fn typed<T: Element>(x: &Tensor, shape: &[usize], out: Option<&Tensor>) -> Result<Tensor> {
    let n = shape.last().copied().unwrap_or(0).max(1);
    let input = View::<T>::new(x)?;
    write::<T>(OP, out, shape, &[x], |y| {
        y.par_chunks_mut(n).zip(input.par_chunks(2 * n)).for_each(|(y, x)| gate(x, y));
    })
}

for_every_isa! {
    fn gate<T: Element>(x: &[T], y: &mut [T]) {
        let (values, gates) = x.split_at(y.len());
        for ((y, value), gate) in y.iter_mut().zip(values).zip(gates) {
            *y = T::from_f32(value.to_f32() * gelu_erf(gate.to_f32()));
        }
    }
}
