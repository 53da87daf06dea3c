//! Classifier-free guidance.

#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "guidance";

/// `uncond + scale (cond - uncond)` (Ho and Salimans, arXiv 2207.12598) in f32. `both` `(2 n, ..)` has the
/// unconditional half first. `scale` `(1)` is an f32 tensor on the device of `both`, so that it can change between the
/// replays of a recorded step. The result is `(n, ..)` in f32.
///
/// # Errors
/// [`crate::Error::Shape`] where the batch is odd or an operand does not fit.
pub fn guidance(both: &Tensor, scale: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    backend::run(&Call { both, scale, shape: GuidanceOp { both, scale, out }.shape()? }, out)
}

/// [`guidance`] as a value.
pub struct GuidanceOp<'a, T = Tensor> {
    /// `(2 n, ..)`.
    pub both: &'a T,
    /// `(1)` in f32.
    pub scale: &'a T,
    /// `(n, ..)` in f32.
    pub out: Option<&'a T>,
}

impl<T: Operand> GuidanceOp<'_, T> {
    /// The shape of the result.
    fn shape(&self) -> Result<Vec<usize>> {
        let shape = match self.both.dims().split_first() {
            Some((&batch, inner)) if batch % 2 == 0 => [&[batch / 2], inner].concat(),
            _ => return Err(refused(OP, "both", "(2 n, ..)", self.both)),
        };
        expect(OP, "scale", Some(self.scale), &[1])?;
        expect(OP, "out", self.out, &shape)?;
        Ok(shape)
    }
}

impl<T: Operand> Operation<T> for GuidanceOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Guidance(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let shape = self.shape()?;
        let cost = Cost::new(shape.clone(), DType::F32);
        if target.is_gpu() {
            return Ok(cost); // one kernel
        }
        // Both halves in f32, their difference, and the scaled difference.
        let halves = if self.both.dtype() == DType::F32 { cost } else { cost.temporary(self.both.dims(), DType::F32) };
        Ok(halves.temporary(&shape, DType::F32).temporary(&shape, DType::F32))
    }

    fn out(&self) -> Option<&T> {
        self.out
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        guidance(self.both.tensor(), self.scale.tensor(), self.out.map(T::tensor)).map(T::result)
    }
}

#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels read the shape"))]
struct Call<'a> {
    both: &'a Tensor,
    scale: &'a Tensor,
    /// The shape of the result.
    shape: Vec<usize>,
}

/// The reference runs on the CPU: a step has one call over a few latents.
impl Kernel<Cpu> for Call<'_> {}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.both
    }

    fn work(&self) -> Work {
        Work::new(&[("both", self.both), ("scale", self.scale)])
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.both, self.scale)
    }
}
