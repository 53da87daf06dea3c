//! Layer normalisation.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result, expect_shape};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

const OP: &str = "layer_norm";

/// Layer Normalization (Ba et al., arXiv 1607.06450) over `x` `(.., c)`: each row of `c` values is shifted and scaled
/// to mean 0 and variance 1, `eps` added to the variance, then `y = x gamma + beta` with `gamma` and `beta` `(c)`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit.
pub fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64, out: Option<&Tensor>) -> Result<Tensor> {
    let Some(&c) = x.dims().last() else {
        return Err(Error::Shape { op: OP, operand: "x", expected: "(.., c)".into(), found: vec![] });
    };
    expect_shape(OP, "gamma", gamma.dims(), &[c])?;
    expect_shape(OP, "beta", beta.dims(), &[c])?;
    let work = || Work::new(&[("x", x), ("gamma", gamma), ("beta", beta)]);
    trace::operator(OP, work, || match x.device() {
        Device::Cpu => cpu::forward(x, gamma, beta, eps, out),
        _ => match cuda::layer_norm(x, gamma, beta, eps, out)? {
            Some(y) => Ok(y),
            None => store(OP, reference::forward(x, gamma, beta, eps)?, out),
        },
    })
}
