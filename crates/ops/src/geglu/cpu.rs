//! GEGLU on the CPU.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::{for_every_isa, gelu_erf};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "x", self.x.dtype(), typed(self.x, &self.shape, out)).map(Some)
    }
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
