//! Activations on the CPU.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Activation, Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::{for_every_isa, gelu_erf, gelu_tanh, quick_gelu, relu, silu};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Elements of a task.
const BLOCK: usize = 16 << 10;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "x", self.x.dtype(), typed(self.x, self.function, out)).map(Some)
    }
}

fn typed<T: Element>(x: &Tensor, function: Activation, out: Option<&Tensor>) -> Result<Tensor> {
    let input = View::<T>::new(x)?;
    write::<T>(OP, out, x.dims(), &[x], |y| {
        y.par_chunks_mut(BLOCK).zip(input.par_chunks(BLOCK)).for_each(|(y, x)| apply(function, x, y));
    })
}

for_every_isa! {
    fn apply<T: Element>(function: Activation, x: &[T], y: &mut [T]) {
        #[inline(always)]
        fn map<T: Element>(x: &[T], y: &mut [T], f: impl Fn(f32) -> f32) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = T::from_f32(f(x.to_f32())));
        }
        match function {
            Activation::Silu => map(x, y, silu),
            Activation::QuickGelu => map(x, y, quick_gelu),
            Activation::GeluErf => map(x, y, gelu_erf),
            Activation::GeluTanh => map(x, y, gelu_tanh),
            Activation::Relu => map(x, y, relu),
        }
    }
}
