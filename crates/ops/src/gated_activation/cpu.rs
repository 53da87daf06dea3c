//! Gated activations on the CPU.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
use crate::activation::Activation;
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::{for_every_isa, gelu_erf, gelu_tanh, quick_gelu, relu, silu};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Elements of a task.
const BLOCK: usize = 16 << 10;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "gate", self.gate.dtype(), typed(self, out)).map(Some)
    }
}

fn typed<T: Element>(call: &Call<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let Call { function, gate, values } = *call;
    let shape = call.shape()?;
    let gates = View::<T>::new(gate)?;
    let Some(values) = values else {
        let n = shape.last().copied().unwrap_or(1).max(1);
        return write::<T>(OP, out, &shape, &[gate], |y| {
            y.par_chunks_mut(n).zip(gates.par_chunks(2 * n)).for_each(|(y, x)| {
                let (gates, values) = x.split_at(n);
                apply(function, gates, values, y);
            });
        });
    };
    let factors = View::<T>::new(values)?;
    write::<T>(OP, out, &shape, &[gate, values], |y| {
        let blocks = y.par_chunks_mut(BLOCK).zip(gates.par_chunks(BLOCK)).zip(factors.par_chunks(BLOCK));
        blocks.for_each(|((y, gates), values)| apply(function, gates, values, y));
    })
}

for_every_isa! {
    fn apply<T: Element>(function: Activation, gates: &[T], values: &[T], y: &mut [T]) {
        #[inline(always)]
        fn map<T: Element>(gates: &[T], values: &[T], y: &mut [T], f: impl Fn(f32) -> f32) {
            for ((y, gate), value) in y.iter_mut().zip(gates).zip(values) {
                *y = T::from_f32(f(gate.to_f32()) * value.to_f32());
            }
        }
        match function {
            Activation::Silu => map(gates, values, y, silu),
            Activation::QuickGelu => map(gates, values, y, quick_gelu),
            Activation::GeluErf => map(gates, values, y, gelu_erf),
            Activation::GeluTanh => map(gates, values, y, gelu_tanh),
            Activation::Relu => map(gates, values, y, relu),
        }
    }
}
