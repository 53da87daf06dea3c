//! Layer normalization.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "layer_norm";

/// Layer Normalization (Ba et al., arXiv 1607.06450) over `x` `(.., c)`: each row of `c` values is shifted and scaled
/// to mean 0 and variance 1, `eps` added to the variance, then `y = x gamma + beta` with `gamma` and `beta` `(c)`.
///
/// # Errors
/// [`crate::Error::Shape`] where an operand does not fit.
pub fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64, out: Option<&Tensor>) -> Result<Tensor> {
    let call = Call { x, gamma, beta, eps };
    call.check()?;
    backend::run(&call, out)
}

/// [`layer_norm`] as a value.
pub struct LayerNormOp<'a, T = Tensor> {
    /// `(.., c)`.
    pub x: &'a T,
    /// `(c)`.
    pub gamma: &'a T,
    /// `(c)`.
    pub beta: &'a T,
    /// Added to the variance.
    pub eps: f64,
}

type Call<'a> = LayerNormOp<'a>;

impl<T: Operand> LayerNormOp<'_, T> {
    fn check(&self) -> Result<()> {
        let Some(&c) = self.x.dims().last() else { return Err(refused(OP, "x", "(.., c)", self.x)) };
        expect(OP, "gamma", Some(self.gamma), &[c])?;
        expect(OP, "beta", Some(self.beta), &[c])
    }
}

impl<T: Operand> Operation<T> for LayerNormOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::LayerNorm(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.x))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        layer_norm(self.x.tensor(), self.gamma.tensor(), self.beta.tensor(), self.eps, None).map(T::result)
    }
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
