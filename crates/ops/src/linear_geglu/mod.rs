//! A linear layer with GEGLU in its epilogue.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::geglu::geglu;
use crate::linear::{self, LinearOp, linear};
use crate::operation::{Cost, Elements, Operand, Operation, WeightOperand, rows_and_channels, with_channels};
use crate::packing::Weight;
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;
#[cfg(feature = "cuda")]
use cuda::has_kernel;

const OP: &str = "linear_geglu";

/// [`crate::geglu()`] of `x weight^T + bias`: `x` `(.., k)`, `weight` `(2 n, k)` with the rows of the values before those of the gates,
/// `bias` `(2 n)`, the result `(.., n)`.
///
/// If [`has_linear_geglu`], one kernel computes it from the f32 sums, which are rounded once. Otherwise this calls [`linear`] and
/// [`crate::geglu()`], and `x` stays in memory during both calls. A caller that calls them itself can free `x` after the first one.
///
/// # Errors
/// The errors of [`linear`]; [`crate::Error::Shape`] if the weight has an odd number of rows.
pub fn linear_geglu(x: &Tensor, weight: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    LinearGegluOp { x, weight, bias }.cost(Target::of(x.device()))?;
    let weight = &*weight.observe(x, None)?;
    backend::run(&Call { x, weight, bias }, None)
}

/// Whether [`linear_geglu`] of these operands is one kernel: on Hopper, in 16 bits, with enough rows.
///
/// # Errors
/// Failures of the device.
pub fn has_linear_geglu(x: &Tensor, weight: &Weight) -> Result<bool> {
    has_kernel(x, weight)
}

#[cfg(not(feature = "cuda"))]
fn has_kernel(_x: &Tensor, _weight: &Weight) -> Result<bool> {
    Ok(false)
}

/// [`linear_geglu`] as a value.
pub struct LinearGegluOp<'a, T: Operand = Tensor> {
    /// `(.., k)`.
    pub x: &'a T,
    /// `(2 n, k)`.
    pub weight: &'a T::Weight,
    /// `(2 n)`.
    pub bias: Option<&'a T>,
}

impl<'a, T: Operand> LinearGegluOp<'a, T> {
    /// The linear layer, whose result has values and gates.
    pub fn linear(&self) -> LinearOp<'a, T> {
        LinearOp { x: self.x, weight: self.weight, bias: self.bias, residual: None }
    }
}

impl<T: Operand> Operation<T> for LinearGegluOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::LinearGeglu(self)
    }

    /// With the memory of the two operators, which the kernel does without.
    fn cost(&self, target: Target) -> Result<Cost> {
        let linear = self.linear().cost(target)?;
        let (_, width) = rows_and_channels(&linear.shape);
        if width % 2 == 1 {
            let found = self.weight.shape().to_vec();
            return Err(Error::Shape { op: OP, operand: "weight", expected: "an even number of rows".into(), found });
        }
        let shape = with_channels(&linear.shape, width / 2);
        let (wide, dtype) = (linear.shape.clone(), linear.dtype);
        Ok(Cost { shape, before: linear.workspace, workspace: Default::default(), ..linear }.temporary(&wide, dtype))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        linear_geglu(self.x.tensor(), self.weight, self.bias.map(T::tensor)).map(T::result)
    }
}

struct Call<'a> {
    x: &'a Tensor,
    weight: &'a Weight,
    bias: Option<&'a Tensor>,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        linear::work(self.x, self.weight, self.bias)
    }

    fn reference(&self) -> Result<Tensor> {
        geglu(&linear(self.x, self.weight, self.bias, None, None)?, None)
    }
}

impl backend::Kernel<backend::Cpu> for Call<'_> {}
