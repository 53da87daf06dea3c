//! The gated activation of the transformer blocks' feed-forward layers.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

const OP: &str = "geglu";

/// GEGLU (Shazeer, arXiv 2002.05202): `x` `(.., 2n)` holds values and gates, the result `(.., n)` is
/// `value * gelu_erf(gate)`, with the exact GELU `gate / 2 (1 + erf(gate / sqrt(2)))`.
///
/// # Errors
/// [`Error::Shape`] where the last dimension of `x` is odd.
pub fn geglu(x: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let shape = match x.dims().split_last() {
        Some((&last, outer)) if last % 2 == 0 => [outer, &[last / 2]].concat(),
        _ => return Err(Error::Shape { op: OP, operand: "x", expected: "(.., 2n)".into(), found: x.dims().to_vec() }),
    };
    let work = || Work::new(&[("x", x)]);
    trace::operator(OP, work, || match x.device() {
        Device::Cpu => cpu::forward(x, &shape, out),
        _ => match cuda::geglu(x, &shape, out)? {
            Some(y) => Ok(y),
            None => store(OP, reference::forward(x)?, out),
        },
    })
}
