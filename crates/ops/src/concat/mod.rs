//! Two feature maps side by side: a skip connection.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::cpu::{Element, View};
use crate::error::{Error, Result};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::{store, write};
use crate::trace::{self, Work};

const OP: &str = "concat_channels";

/// `a` `(.., m)` and `b` `(.., n)` with the same outer dimensions, as `(.., m + n)`.
///
/// # Errors
/// [`Error::Shape`] where the outer dimensions differ.
pub fn concat_channels(a: &Tensor, b: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let (m, n, shape) = match (a.dims().split_last(), b.dims().split_last()) {
        (Some((&m, outer)), Some((&n, other))) if outer == other => (m, n, [outer, &[m + n]].concat()),
        _ => {
            let expected = format!("the outer dimensions of {:?}", a.dims());
            return Err(Error::Shape { op: OP, operand: "b", expected, found: b.dims().to_vec() });
        }
    };
    let work = || Work::new(&[("a", a), ("b", b)]);
    trace::operator(OP, work, || {
        if !matches!(a.device(), Device::Cpu) {
            return match cuda::concat_channels(a, b, (m, n), &shape, out)? {
                Some(y) => Ok(y),
                None => store(OP, Tensor::cat(&[a, b], a.rank() - 1)?, out),
            };
        }
        dispatch!(OP, "a", a.dtype(), typed(a, b, (m, n), &shape, out))
    })
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
