//! The gated activations of feed-forward layers: SwiGLU, and GEGLU with the approximate GELU.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::activation::Activation;
use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused, with_channels};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "gated_activation";

/// `function(gate) value` (Shazeer, arXiv 2002.05202) in f32: with SiLU it is SwiGLU, with [`Activation::GeluTanh`] T5's
/// gated GELU. `gate`, `values` and the result are `(.., n)`; without `values`, `gate` is `(.., 2n)`: gates, then values.
/// [`crate::geglu`] has the values first.
///
/// # Errors
/// [`crate::Error::Shape`] for an operand that does not fit.
pub fn gated_activation(
    function: Activation,
    gate: &Tensor,
    values: Option<&Tensor>,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let call = Call { function, gate, values };
    call.shape()?;
    backend::run(&call, out)
}

/// [`gated_activation`] as a value.
pub struct GatedActivationOp<'a, T = Tensor> {
    /// The function of the gates.
    pub function: Activation,
    /// `(.., n)`, or `(.., 2n)` with the values behind the gates.
    pub gate: &'a T,
    /// `(.., n)`.
    pub values: Option<&'a T>,
}

type Call<'a> = GatedActivationOp<'a>;

impl<T: Operand> GatedActivationOp<'_, T> {
    /// The shape of the result.
    fn shape(&self) -> Result<Vec<usize>> {
        match (self.gate.dims().last(), self.values) {
            (Some(width), None) if width % 2 == 0 => Ok(with_channels(self.gate.dims(), width / 2)),
            (Some(_), Some(values)) => {
                expect(OP, "values", Some(values), self.gate.dims())?;
                Ok(self.gate.dims().to_vec())
            }
            _ => Err(refused(OP, "gate", "(.., 2n)", self.gate)),
        }
    }
}

impl<T: Operand> Operation<T> for GatedActivationOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GatedActivation(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        Ok(Cost::new(self.shape()?, self.gate.dtype()))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        gated_activation(self.function, self.gate.tensor(), self.values.map(T::tensor), None).map(T::result)
    }
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.gate
    }

    fn work(&self) -> Work {
        Work::new(&[("gate", self.gate)]).and("values", self.values).config(self.function)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self)
    }
}
