//! Activations before products of bytes.

use candle_core::{DType, Device, Tensor};

use crate::activation::{Activation, activation};
use crate::concat::concat_channels;
use crate::error::Result;
use crate::gated_activation::gated_activation;
use crate::operation::{Elements, Operand, expect, refused, with_channels};

/// The input of a linear layer after an activation: `function` of `hidden`, behind the channels `before`.
#[derive(Debug, Clone, Copy)]
pub struct Activated<T> {
    /// `(.., m)`, the first channels of the input, if there are any.
    pub before: Option<T>,
    /// The input of the activation, whose result is `(.., n)`.
    pub hidden: Hidden<T>,
    /// The activation, or that of the gates.
    pub function: Activation,
}

/// The input of an activation, gated or not.
#[derive(Debug, Clone, Copy)]
pub enum Hidden<T> {
    /// `(.., n)`, without gates.
    Plain(T),
    /// `(.., 2 n)`: the gates, then the values.
    Joint(T),
    /// Gates and values, each `(.., n)`.
    Separate {
        /// The gates.
        gates: T,
        /// The values.
        values: T,
    },
}

impl<T> Activated<T> {
    /// This with borrowed tensors.
    pub fn as_ref(&self) -> Activated<&T> {
        Activated { before: self.before.as_ref(), hidden: self.hidden.as_ref(), function: self.function }
    }
}

impl<T> Hidden<T> {
    /// This with borrowed tensors.
    pub fn as_ref(&self) -> Hidden<&T> {
        match self {
            Self::Plain(x) => Hidden::Plain(x),
            Self::Joint(x) => Hidden::Joint(x),
            Self::Separate { gates, values } => Hidden::Separate { gates, values },
        }
    }
}

impl<'a, T> Hidden<&'a T> {
    /// The tensor of the activation, or of its gates.
    pub fn first(&self) -> &'a T {
        match *self {
            Self::Plain(x) | Self::Joint(x) | Self::Separate { gates: x, .. } => x,
        }
    }
}

impl<T: Operand> Activated<&T> {
    /// The shape of the input of the linear layer.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for an operand that does not fit.
    pub(super) fn shape(&self, op: &'static str) -> Result<Vec<usize>> {
        let first = self.hidden.first();
        let width = first.dims().last().copied().unwrap_or(1);
        let n = match self.hidden {
            Hidden::Plain(_) => width,
            Hidden::Joint(x) if width % 2 == 1 => return Err(refused(op, "gates and values", "(.., 2 n)", x)),
            Hidden::Joint(_) => width / 2,
            Hidden::Separate { values, .. } => {
                expect(op, "values", Some(values), first.dims())?;
                width
            }
        };
        let m = self.before.and_then(|before| before.dims().last().copied()).unwrap_or(0);
        expect(op, "before", self.before, &with_channels(first.dims(), m))?;
        Ok(with_channels(first.dims(), m + n))
    }
}

impl<'a> Activated<&'a Tensor> {
    /// The tensors of operands with elements.
    pub(super) fn tensors<T: Elements>(of: Activated<&'a T>) -> Self {
        let hidden = match of.hidden {
            Hidden::Plain(x) => Hidden::Plain(x.tensor()),
            Hidden::Joint(x) => Hidden::Joint(x.tensor()),
            Hidden::Separate { gates, values } => Hidden::Separate { gates: gates.tensor(), values: values.tensor() },
        };
        Self { before: of.before.map(T::tensor), hidden, function: of.function }
    }

    /// The input of the linear layer in f32 on the CPU.
    pub(super) fn exact(&self) -> Result<Tensor> {
        let exact = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous();
        let activated = match self.hidden {
            Hidden::Plain(x) => activation(&exact(x)?, self.function, None)?,
            Hidden::Joint(x) => gated_activation(self.function, &exact(x)?, None, None)?,
            Hidden::Separate { gates, values } => {
                gated_activation(self.function, &exact(gates)?, Some(&exact(values)?), None)?
            }
        };
        match self.before {
            Some(before) => concat_channels(&exact(before)?, &activated, None),
            None => Ok(activated),
        }
    }
}
