//! Operators as values: an operator's operands and options, with its shape rule, its memory, its floating-point
//! operations and its kernel in one place.
//!
//! Every operator's folder has a struct, generic over the type of tensors, that implements [`Operation`]. A network is
//! written once for all types of tensors: with [`candle_core::Tensor`] an operation computes ([`Operation::compute`]),
//! for tensors that are shapes alone its [`Cost`] is enough.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::group_norm::GroupNormStatistics;
use crate::matrix::MatrixType;
use crate::packing::{EightBits, Weight};
use crate::portable::Call;
use crate::workspace::{Target, Workspace};

/// A tensor as the rules of operators see it: its shape and its type. It may have no elements.
pub trait Operand: Sized {
    /// The parameter of a product.
    type Weight: WeightOperand;
    /// A group normalization whose sums are complete.
    type Statistics;

    /// The shape.
    fn dims(&self) -> &[usize];

    /// The type of the elements.
    fn dtype(&self) -> DType;
}

/// The parameter of a product as the rules of operators see it.
pub trait WeightOperand {
    /// `(c_out, kh, kw, c_in)`; `(n, 1, 1, k)` for a linear layer.
    fn shape(&self) -> [usize; 4];

    /// How products are computed in 8 bits; `None` if they are not.
    fn eight_bits(&self) -> Option<EightBits>;

    /// The storage type of the rows, if they have one of their own.
    fn matrix(&self) -> Option<MatrixType>;
}

/// A tensor with elements: [`Tensor`] and nothing else.
pub trait Elements: Operand<Weight = Weight, Statistics = GroupNormStatistics> {
    /// This tensor.
    fn tensor(&self) -> &Tensor;

    /// A result.
    fn result(tensor: Tensor) -> Self;
}

/// A call of an operator: its operands and options.
pub trait Operation<T: Operand> {
    /// Checks the operands and returns the result's shape and type, and the cost on a device of the kind `target`.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Config`] for operands that the operator rejects.
    fn cost(&self, target: Target) -> Result<Cost>;

    /// This operator, for back ends that have kernels of their own.
    fn call(&self) -> Call<'_, T>;

    /// The tensor that gets the result, if the caller passes one.
    fn out(&self) -> Option<&T> {
        None
    }

    /// The result.
    ///
    /// # Errors
    /// The errors of [`Operation::cost`], and failures of the device.
    fn compute(&self) -> Result<T>
    where
        T: Elements;
}

/// The result of an operation as a shape, and its cost. Memory is counted in this order: `before`, the temporaries, the
/// result, `workspace`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// The result's shape.
    pub shape: Vec<usize>,
    /// The result's type.
    pub dtype: DType,
    /// Memory that is free again when the result is allocated.
    pub before: Workspace,
    /// Tensors that live until the result is complete.
    pub temporaries: Vec<(Vec<usize>, DType)>,
    /// Memory besides the operands and the result.
    pub workspace: Workspace,
    /// Floating-point operations of products.
    pub flop: f64,
}

impl Cost {
    /// A result without further memory and without products.
    pub fn new(shape: impl Into<Vec<usize>>, dtype: DType) -> Self {
        let (before, workspace) = Default::default();
        Self { shape: shape.into(), dtype, before, temporaries: Vec::new(), workspace, flop: 0.0 }
    }

    /// A result with the shape and the type of `x`.
    pub fn like<T: Operand>(x: &T) -> Self {
        Self::new(x.dims(), x.dtype())
    }

    pub(crate) fn workspace(self, workspace: Workspace) -> Self {
        Self { workspace, ..self }
    }

    pub(crate) fn flop(self, flop: f64) -> Self {
        Self { flop, ..self }
    }

    pub(crate) fn temporary(mut self, shape: &[usize], dtype: DType) -> Self {
        self.temporaries.push((shape.to_vec(), dtype));
        self
    }
}

impl Operand for Tensor {
    type Weight = Weight;
    type Statistics = GroupNormStatistics;

    fn dims(&self) -> &[usize] {
        self.dims()
    }

    fn dtype(&self) -> DType {
        self.dtype()
    }
}

impl Elements for Tensor {
    fn tensor(&self) -> &Tensor {
        self
    }

    fn result(tensor: Tensor) -> Self {
        tensor
    }
}

impl WeightOperand for Weight {
    fn shape(&self) -> [usize; 4] {
        self.shape()
    }

    fn eight_bits(&self) -> Option<EightBits> {
        self.eight_bits()
    }

    fn matrix(&self) -> Option<MatrixType> {
        self.stored_rows().map(|rows| rows.kind)
    }
}

/// The error for an operand of another shape than `expected`.
pub(crate) fn refused<T: Operand>(
    op: &'static str,
    operand: &'static str,
    expected: impl Into<String>,
    x: &T,
) -> Error {
    Error::Shape { op, operand, expected: expected.into(), found: x.dims().to_vec() }
}

/// An error if there is an operand of another shape.
pub(crate) fn expect<T: Operand>(
    op: &'static str,
    operand: &'static str,
    x: Option<&T>,
    shape: &[usize],
) -> Result<()> {
    match x.filter(|x| x.dims() != shape) {
        Some(x) => Err(refused(op, operand, format!("{shape:?}"), x)),
        None => Ok(()),
    }
}

/// The sizes of a tensor with `N` dimensions; `expected` names them.
pub(crate) fn sizes<T: Operand, const N: usize>(
    op: &'static str,
    operand: &'static str,
    x: &T,
    expected: &str,
) -> Result<[usize; N]> {
    x.dims().try_into().map_err(|_| refused(op, operand, expected, x))
}

/// The last dimension, 1 for a scalar, and the number of rows before it.
pub(crate) fn rows_and_channels(dims: &[usize]) -> (usize, usize) {
    dims.split_last().map_or((1, 1), |(&c, outer)| (outer.iter().product(), c))
}

/// The shape `dims` with another last dimension.
pub(crate) fn with_channels(dims: &[usize], channels: usize) -> Vec<usize> {
    let outer = dims.split_last().map_or(&[][..], |(_, outer)| outer);
    [outer, &[channels]].concat()
}
