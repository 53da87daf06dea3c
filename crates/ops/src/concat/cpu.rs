//! Concatenation on the CPU: rows are copied.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { a, b, channels, shape } = self;
        dispatch!(OP, "a", a.dtype(), typed(a, b, *channels, shape, out)).map(Some)
    }
}

fn typed<T: Element>(
    a: &Tensor,
    b: &Tensor,
    (m, n): (usize, usize),
    shape: &[usize],
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let (left, right) = (View::<T>::new(a)?, View::<T>::new(b)?);
    write::<T>(OP, out, shape, &[a, b], |y| {
        y.par_chunks_mut((m + n).max(1)).enumerate().for_each(|(row, y)| {
            let (y_left, y_right) = y.split_at_mut(m);
            y_left.copy_from_slice(&left[row * m..][..m]);
            y_right.copy_from_slice(&right[row * n..][..n]);
        });
    })
}
