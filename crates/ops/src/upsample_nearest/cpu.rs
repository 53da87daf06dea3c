//! Upsampling on the CPU: whole pixels are copied.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (rows, columns) = self.sources()?;
        dispatch!(OP, "x", self.x.dtype(), typed(self.x, &rows, &columns, out)).map(Some)
    }
}

fn typed<T: Element>(x: &Tensor, rows: &[usize], columns: &[usize], out: Option<&Tensor>) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4()?;
    let (h_out, w_out) = (rows.len(), columns.len());
    let input = View::<T>::new(x)?;
    write::<T>(OP, out, &[b, h_out, w_out, c], &[x], |y| {
        y.par_chunks_mut((w_out * c).max(1)).enumerate().for_each(|(row, y)| {
            let source = (row / h_out * h + rows[row % h_out]) * w;
            for (y, column) in y.chunks_exact_mut(c).zip(columns) {
                y.copy_from_slice(&input[(source + column) * c..][..c]);
            }
        });
    })
}
