//! Sizes, rows, and functions of elements as methods of tensors.

use std::ops::Range;

use kiln_ops::{
    Activation, ActivationOp, Arithmetic, Binary, BinaryOp, IndexSelectOp, Map, MapOp, PremultiplyOp, ReduceOp,
    Reduction,
};
use kiln_weights::Param;

use super::TensorLike;
use crate::error::Result;

/// Sizes and rows, and operators that compute element by element. Every [`TensorLike`] has them: generic code needs no
/// import, code for one type of tensors imports this trait.
pub trait Elementwise: Sized {
    // Shapes and parameters.

    /// An optional vector, for use with this tensor.
    fn optional_param(&self, param: Option<&Param>) -> Result<Option<Self>>
    where
        Self: TensorLike,
    {
        param.map(|param| self.param(param)).transpose()
    }

    /// The sizes of a tensor with two dimensions.
    ///
    /// # Errors
    /// [`kiln_ops::Error::Shape`] for another rank; also for the next two.
    fn size2(&self) -> Result<[usize; 2]>
    where
        Self: TensorLike,
    {
        sizes(self)
    }

    /// The sizes of a tensor with three dimensions.
    fn size3(&self) -> Result<[usize; 3]>
    where
        Self: TensorLike,
    {
        sizes(self)
    }

    /// The sizes of a tensor with four dimensions.
    fn size4(&self) -> Result<[usize; 4]>
    where
        Self: TensorLike,
    {
        sizes(self)
    }

    /// Rows `rows` of a feature map `(b, h, w, c)`, as a view.
    fn rows(&self, rows: Range<usize>) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.narrow(1, rows.start, rows.len())
    }

    /// The elements `rows` of the first dimension.
    fn index_select(&self, rows: &[u32]) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&IndexSelectOp { table: self, rows })
    }

    // Element by element.

    /// `self * mul + add`.
    fn affine(&self, mul: f64, add: f64) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&MapOp { x: self, map: Map::Affine { mul, add } })
    }

    /// The hyperbolic tangent.
    fn tanh(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&MapOp { x: self, map: Map::Tanh })
    }

    /// The square root.
    fn sqrt(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&MapOp { x: self, map: Map::Sqrt })
    }

    /// The natural logarithm.
    fn log(&self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&MapOp { x: self, map: Map::Log })
    }

    /// Values limited to `min..=max`.
    fn clamp(&self, min: f64, max: f64) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&MapOp { x: self, map: Map::Clamp { min, max } })
    }

    /// The sum with a tensor of the same shape.
    fn add(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Same(Arithmetic::Add), self, other)
    }

    /// The difference from a tensor of the same shape.
    fn sub(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Same(Arithmetic::Sub), self, other)
    }

    /// The product with a tensor of the same shape.
    fn mul(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Same(Arithmetic::Mul), self, other)
    }

    /// The sum with a tensor that is repeated along missing dimensions and those of 1. The result has this tensor's shape.
    fn broadcast_add(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Repeated(Arithmetic::Add), self, other)
    }

    /// The product, with the same broadcasting.
    fn broadcast_mul(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Repeated(Arithmetic::Mul), self, other)
    }

    /// The quotient, with the same broadcasting.
    fn broadcast_div(&self, other: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        binary(Binary::Divide, self, other)
    }

    /// One number of each line along dimension `dim`, whose size is 1 afterwards.
    fn reduce(&self, how: Reduction, dim: usize) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&ReduceOp { x: self, how, dim })
    }

    /// The products `(b, m, n)` of `matrix` `(m, k)` with the matrices of `self` `(b, k, n)`, both in f32.
    fn premultiplied(&self, matrix: &Self) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&PremultiplyOp { x: self, matrix })
    }

    /// [`kiln_ops::activation()`].
    fn activation(&self, function: Activation) -> Result<Self>
    where
        Self: TensorLike,
    {
        self.apply(&ActivationOp { x: self, function })
    }
}

impl<T: TensorLike> Elementwise for T {}

fn binary<T: TensorLike>(function: Binary, a: &T, b: &T) -> Result<T> {
    a.apply(&BinaryOp { function, a, b })
}

fn sizes<T: TensorLike, const N: usize>(x: &T) -> Result<[usize; N]> {
    x.dims().try_into().map_err(|_| {
        let (expected, found) = (format!("{N} dimensions"), x.dims().to_vec());
        kiln_ops::Error::Shape { op: "size", operand: "x", expected, found }.into()
    })
}
