//! Sums of changes on the CPU.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{CHANGE_PART, Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::for_every_isa;
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Sums that are made side by side. The number is the same for every instruction set, and so are the bits.
const SUMS: usize = 16;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(OP, "now", self.now.dtype(), typed(self, out)).map(Some)
    }
}

fn typed<T: Element>(call: &Call<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let (now, before) = (View::<T>::new(call.now)?, View::<T>::new(call.before)?);
    let (now, before, image) = (&now[..], &before[..], call.image());
    let shape @ [_, parts, _] = call.shape();
    write::<f32>(OP, out, &shape, &[call.now, call.before], |result| {
        result.par_chunks_exact_mut(2).enumerate().for_each(|(i, result)| {
            let (of, start) = (i / parts * image, i % parts * CHANGE_PART);
            let part = of + start..of + image.min(start + CHANGE_PART);
            add(&now[part.clone()], &before[part], result);
        });
    })
}

for_every_isa! {
    fn add<T: Element>(now: &[T], before: &[T], result: &mut [f32]) {
        let (mut changes, mut sizes) = ([0f32; SUMS], [0f32; SUMS]);
        for (now, before) in now.chunks(SUMS).zip(before.chunks(SUMS)) {
            for (((now, before), change), size) in now.iter().zip(before).zip(&mut changes).zip(&mut sizes) {
                let (now, before) = (now.to_f32(), before.to_f32());
                *change += (now - before).abs();
                *size += before.abs();
            }
        }
        result[0] = changes.iter().sum();
        result[1] = sizes.iter().sum();
    }
}
