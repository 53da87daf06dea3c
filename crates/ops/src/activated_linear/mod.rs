//! A linear layer with an activation in its epilogue, whose result may follow other channels.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::activation::{Activation, activation};
use crate::backend::{self, Operator};
use crate::concat::concat_channels;
use crate::error::Result;
use crate::linear::{self, LinearOp, linear};
use crate::operation::{Cost, Elements, Operand, Operation, WeightOperand, expect, rows_and_channels, with_channels};
use crate::packing::Weight;
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "activated_linear";

/// `function(x weight^T + bias)`: `x` `(.., k)`, `weight` `(n, k)`, `bias` `(n)`. With `before` `(.., m)` the result is `(.., m + n)`:
/// its first `m` channels are those of `before`.
///
/// On a GPU cuBLASLt computes [`Activation::GeluTanh`] with the product where [`Target::fuses_activation`] says so: from the f32 sums,
/// which are rounded once. Otherwise this is the same as [`linear`], [`crate::activation()`] and [`concat_channels`].
///
/// # Errors
/// The errors of [`linear`]; [`crate::Error::Shape`] if `before` does not fit.
pub fn activated_linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Tensor>,
    function: Activation,
    before: Option<&Tensor>,
) -> Result<Tensor> {
    ActivatedLinearOp { linear: LinearOp { x, weight, bias, residual: None }, function, before }.shape()?;
    let weight = &*weight.observe(x, None)?;
    backend::run(&Call { x, weight, bias, function, before }, None)
}

impl Target {
    /// Whether a linear layer with a weight in the type of its input computes this activation, too.
    pub fn fuses_activation(self, dtype: DType, function: Activation) -> bool {
        self == Self::Gpu && dtype != DType::F32 && function == Activation::GeluTanh
    }
}

/// [`activated_linear`] as a value.
pub struct ActivatedLinearOp<'a, T: Operand = Tensor> {
    /// The linear layer, without a residual.
    pub linear: LinearOp<'a, T>,
    /// The activation.
    pub function: Activation,
    /// `(.., m)`, the channels before those of the layer.
    pub before: Option<&'a T>,
}

impl<T: Operand> ActivatedLinearOp<'_, T> {
    /// The shape of the result.
    fn shape(&self) -> Result<Vec<usize>> {
        let [n, ..] = self.linear.weight.shape();
        let before = self.before.map_or(0, |before| rows_and_channels(before.dims()).1);
        expect(OP, "before", self.before, &with_channels(self.linear.x.dims(), before))?;
        Ok(with_channels(self.linear.x.dims(), before + n))
    }
}

impl<T: Operand> Operation<T> for ActivatedLinearOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::ActivatedLinear(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        Ok(Cost { shape: self.shape()?, ..self.linear.cost(target)? })
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let LinearOp { x, weight, bias, .. } = self.linear;
        let before = self.before.map(T::tensor);
        activated_linear(x.tensor(), weight, bias.map(T::tensor), self.function, before).map(T::result)
    }
}

struct Call<'a> {
    x: &'a Tensor,
    weight: &'a Weight,
    bias: Option<&'a Tensor>,
    function: Activation,
    before: Option<&'a Tensor>,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        linear::work(self.x, self.weight, self.bias).and("before", self.before).config(self.function)
    }

    fn reference(&self) -> Result<Tensor> {
        let y = linear(self.x, self.weight, self.bias, None, None)?;
        let y = activation(&y, self.function, None)?;
        self.before.map_or(Ok(y.clone()), |before| concat_channels(before, &y, None))
    }
}

impl backend::Kernel<backend::Cpu> for Call<'_> {}
