//! Layer normalization.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::trace::Work;

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
    backend::run(&Call { x, gamma, beta, eps }, out)
}

struct Call<'a> {
    x: &'a Tensor,
    gamma: &'a Tensor,
    beta: &'a Tensor,
    eps: f64,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x), ("gamma", self.gamma), ("beta", self.beta)])
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.gamma, self.beta, self.eps)
    }
}
