//! The products of [`super::fused`] as values.

use candle_core::Tensor;

use super::activated::Activated;
use super::fused::{activation_linear, geglu_linear, normed_conv2d, normed_linear};
use crate::conv2d::{Conv2d, Conv2dInputs, Conv2dOp};
use crate::error::{Error, Result};
use crate::flop::linear_flop;
use crate::group_norm::{GroupNorm, sums_workspace};
use crate::linear::LinearOp;
use crate::operation::{
    Cost, Elements, Operand, Operation, WeightOperand, expect, refused, rows_and_channels, with_channels,
};
use crate::portable;
use crate::workspace::Target;

/// [`normed_linear`] as a value.
pub struct NormedLinearOp<'a, T: Operand = Tensor> {
    /// Gamma `(k)`, beta `(k)` and epsilon.
    pub norm: (&'a T, &'a T, f64),
    /// The linear layer.
    pub linear: LinearOp<'a, T>,
}

impl<T: Operand> Operation<T> for NormedLinearOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::NormedLinear(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let (_, channels) = rows_and_channels(self.linear.x.dims());
        expect("normed_linear", "gamma", Some(self.norm.0), &[channels])?;
        expect("normed_linear", "beta", Some(self.norm.1), &[channels])?;
        self.linear.cost(target)
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (LinearOp { x, weight, bias, residual }, (gamma, beta, eps)) = (&self.linear, self.norm);
        let norm = (gamma.tensor(), beta.tensor(), eps);
        normed_linear(x.tensor(), norm, weight, bias.map(T::tensor), residual.map(T::tensor)).map(T::result)
    }
}

/// [`geglu_linear`] as a value. Its `x` is `(.., 2 k)`.
pub struct GegluLinearOp<'a, T: Operand = Tensor>(pub LinearOp<'a, T>);

impl<T: Operand> Operation<T> for GegluLinearOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GegluLinear(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        const OP: &str = "geglu_linear";
        let LinearOp { x, weight, bias, residual } = self.0;
        let ((_, width), [.., k]) = (rows_and_channels(x.dims()), weight.shape());
        if width % 2 == 1 {
            return Err(refused(OP, "x", "(.., 2 k)", x));
        }
        if width / 2 != k {
            return Err(refused(OP, "x", format!("(.., {})", 2 * k), x));
        }
        cost(OP, x, weight, bias, residual)
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let LinearOp { x, weight, bias, residual } = self.0;
        geglu_linear(x.tensor(), weight, bias.map(T::tensor), residual.map(T::tensor)).map(T::result)
    }
}

/// [`activation_linear`] as a value.
pub struct ActivationLinearOp<'a, T: Operand = Tensor> {
    /// The input of the linear layer.
    pub input: Activated<&'a T>,
    /// Its weight `(n, k)`.
    pub weight: &'a T::Weight,
    /// `(n)`.
    pub bias: Option<&'a T>,
    /// `(.., n)`.
    pub residual: Option<&'a T>,
}

impl<T: Operand> Operation<T> for ActivationLinearOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::ActivationLinear(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        const OP: &str = "activation_linear";
        let Self { input, weight, bias, residual } = self;
        let (shape, [.., k]) = (input.shape(OP)?, weight.shape());
        if shape.last() != Some(&k) {
            return Err(Error::Shape { op: OP, operand: "input", expected: format!("(.., {k})"), found: shape });
        }
        cost(OP, input.hidden.first(), *weight, *bias, *residual)
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (bias, residual) = (self.bias.map(T::tensor), self.residual.map(T::tensor));
        activation_linear(Activated::tensors(self.input), self.weight, bias, residual).map(T::result)
    }
}

/// The cost of a linear layer with a weight `(n, k)` and as many rows as `x` `(.., c)` has.
fn cost<T: Operand>(
    op: &'static str,
    x: &T,
    weight: &T::Weight,
    bias: Option<&T>,
    residual: Option<&T>,
) -> Result<Cost> {
    let ((rows, _), [n, _, _, k]) = (rows_and_channels(x.dims()), weight.shape());
    let shape = with_channels(x.dims(), n);
    expect(op, "bias", bias, &[n])?;
    expect(op, "residual", residual, &shape)?;
    let cost = Cost::new(shape, x.dtype()).flop(linear_flop(rows, [n, k]));
    Ok(match weight.eight_bits() {
        Some(kind) => cost.workspace(kind.workspace([1, rows, k], true)),
        None => cost, // an error when it runs
    })
}

/// [`normed_conv2d`] as a value.
pub struct NormedConv2dOp<'a, T: Operand = Tensor> {
    /// Gamma `(c_in)`, beta `(c_in)` and the configuration.
    pub norm: (&'a T, &'a T, GroupNorm),
    /// The operands of the convolution.
    pub inputs: Conv2dInputs<'a, T, T::Weight>,
    /// Its geometry.
    pub config: Conv2d,
}

impl<T: Operand> Operation<T> for NormedConv2dOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::NormedConv2d(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let ((gamma, beta, norm), inputs) = (self.norm, self.inputs);
        let (_, channels) = rows_and_channels(inputs.x.dims());
        expect("normed_conv2d", "gamma", Some(gamma), &[channels])?;
        expect("normed_conv2d", "beta", Some(beta), &[channels])?;
        let before = sums_workspace(target, inputs.x, norm)?;
        let product = Conv2dOp { inputs, config: self.config, strip: None, out: None };
        Ok(Cost { before, ..product.cost(target)? })
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (gamma, beta, norm) = self.norm;
        normed_conv2d(self.inputs.tensors(), (gamma.tensor(), beta.tensor(), norm), self.config).map(T::result)
    }
}
