//! The operands and the arithmetic of a call.

use std::fmt::Debug;

use candle_core::Tensor;

use super::Operand;
use crate::packing::Weight;

/// The operands of a call and its arithmetic.
pub(crate) struct Work {
    pub(super) operands: Vec<Operand>,
    pub(super) config: Option<String>,
    pub(super) flop: f64,
}

impl Work {
    /// The work of a call that reads these tensors.
    pub(crate) fn new(operands: &[(&'static str, &Tensor)]) -> Self {
        let work = Self { operands: Vec::new(), config: None, flop: 0.0 };
        operands.iter().fold(work, |work, &(name, tensor)| work.and(name, Some(tensor)))
    }

    /// Adds a tensor, if there is one.
    pub(crate) fn and(mut self, name: &'static str, tensor: Option<&Tensor>) -> Self {
        self.operands.extend(tensor.map(|tensor| Operand {
            name,
            shape: tensor.dims().to_vec(),
            dtype: tensor.dtype(),
        }));
        self
    }

    /// Adds a weight with its shape before packing.
    pub(crate) fn weight(mut self, weight: &Weight) -> Self {
        let shape = match weight.shape() {
            [n, 1, 1, k] => vec![n, k],
            shape => shape.to_vec(),
        };
        self.operands.push(Operand { name: "weight", shape, dtype: weight.tensor().dtype() });
        self
    }

    /// Adds the configuration.
    pub(crate) fn config(self, config: impl Debug) -> Self {
        Self { config: Some(format!("{config:?}")), ..self }
    }

    /// The floating-point operations of its products.
    pub(crate) fn flop(self, flop: f64) -> Self {
        Self { flop, ..self }
    }
}
