//! A residual connection whose branch is scaled by a vector of each image.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "gated_residual";

/// `x + gate y` (adaLN-Zero; Peebles and Xie, arXiv 2212.09748): `x`, `y` and the result are `(b, .., c)`, `gate` is `(b, c)`,
/// or `(1, c)` for all images; it may be a slice of wider rows. The sum is f32 and rounded once.
///
/// In f16 the result is limited to -65504 to 65504, so that a residual stream stays finite: those of FLUX leave the range of f16
/// in a few channels. diffusers limits them after each block.
///
/// # Errors
/// [`crate::Error::Shape`] for an operand that does not fit.
pub fn gated_residual(x: &Tensor, gate: &Tensor, y: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let call = Call { x, gate, y };
    call.check()?;
    backend::run(&call, out)
}

/// [`gated_residual`] as a value.
pub struct GatedResidualOp<'a, T = Tensor> {
    /// `(b, .., c)`.
    pub x: &'a T,
    /// `(b, c)` or `(1, c)`.
    pub gate: &'a T,
    /// `(b, .., c)`.
    pub y: &'a T,
}

type Call<'a> = GatedResidualOp<'a>;

/// The largest magnitude of a result.
fn limit(dtype: DType) -> f32 {
    if dtype == DType::F16 { F16_MAX } else { f32::INFINITY }
}

/// The largest finite number in f16. `kernel.cu` has it too.
const F16_MAX: f32 = 65504.0;

impl<T: Operand> GatedResidualOp<'_, T> {
    fn check(&self) -> Result<()> {
        let (&[b, _, ..], Some(&c)) = (self.x.dims(), self.x.dims().last()) else {
            return Err(refused(OP, "x", "(b, .., c)", self.x));
        };
        expect(OP, "gate", Some(self.gate).filter(|gate| gate.dims() != [1, c]), &[b, c])?;
        expect(OP, "y", Some(self.y), self.x.dims())
    }

    /// Elements of each image.
    fn image(&self) -> usize {
        self.x.dims().iter().skip(1).product()
    }
}

impl<T: Operand> Operation<T> for GatedResidualOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GatedResidual(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.x))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        gated_residual(self.x.tensor(), self.gate.tensor(), self.y.tensor(), None).map(T::result)
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
        Work::new(&[("x", self.x), ("gate", self.gate), ("y", self.y)])
    }

    fn reference(&self) -> Result<Tensor> {
        let Self { x, gate, y } = *self;
        let mut shape = vec![1; x.rank()];
        (shape[0], shape[x.rank() - 1]) = gate.dims2()?;
        let gate = gate.to_dtype(DType::F32)?.reshape(shape)?;
        let sum = (x.to_dtype(DType::F32)? + y.to_dtype(DType::F32)?.broadcast_mul(&gate)?)?;
        let limit = limit(x.dtype());
        let sum = if limit.is_finite() { sum.clamp(-limit, limit)? } else { sum };
        Ok(sum.to_dtype(x.dtype())?)
    }
}
