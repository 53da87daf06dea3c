//! Shuffling on the CPU: a task permutes the rows of one row of squares.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, Sizes};
use crate::backend::{Cpu, Kernel};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch!(self.op, "x", self.x.dtype(), typed(self, out)).map(Some)
    }
}

fn typed<T: Element>(&Call { op, x, sizes, shuffle }: &Call<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let Sizes { w, c, factor, .. } = sizes;
    let input = View::<T>::new(x)?;
    let shape = if shuffle { sizes.many_pixels() } else { sizes.few_pixels() };
    // The elements of a row of squares are contiguous in both maps.
    let row = w * c * factor * factor;
    write::<T>(op, out, &shape, &[x], |y| {
        y.par_chunks_mut(row.max(1)).zip(input.par_chunks(row.max(1))).for_each(|(y, x)| {
            for column in 0..w {
                for k in 0..c {
                    for i in 0..factor {
                        for j in 0..factor {
                            let few = (column * c + k) * factor * factor + i * factor + j;
                            let many = ((i * w + column) * factor + j) * c + k;
                            let (to, from) = if shuffle { (many, few) } else { (few, many) };
                            y[to] = x[from];
                        }
                    }
                }
            }
        });
    })
}
