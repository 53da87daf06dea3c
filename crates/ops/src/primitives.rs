//! Operations that are candle's primitives on every device: between layers, for small tensors.

use candle_core::{Device, Tensor};

use crate::elementwise::{self, Arithmetic};
use crate::error::Result;
use crate::flop::linear_flop;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::workspace::Target;

/// How [`ReduceOp`] makes one number of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The mean.
    Mean,
    /// The least.
    Min,
    /// The largest.
    Max,
}

/// A function of every element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Map {
    /// `mul * x + add`.
    Affine {
        /// The factor.
        mul: f64,
        /// The addend.
        add: f64,
    },
    /// The hyperbolic tangent.
    Tanh,
    /// The square root.
    Sqrt,
    /// The natural logarithm.
    Log,
    /// Values limited to `min..=max`.
    Clamp {
        /// The least value.
        min: f64,
        /// The largest value.
        max: f64,
    },
}

/// A function of every element of a tensor.
pub struct MapOp<'a, T = Tensor> {
    /// Any shape.
    pub x: &'a T,
    /// The function.
    pub map: Map,
}

impl<T: Operand> Operation<T> for MapOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Map(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let cost = Cost::like(self.x);
        Ok(match self.map {
            Map::Clamp { .. } => cost.temporary(self.x.dims(), self.x.dtype()), // one bound after the other
            Map::Affine { .. } | Map::Tanh | Map::Sqrt | Map::Log => cost,
        })
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let x = self.x.tensor();
        Ok(T::result(match self.map {
            Map::Affine { mul, add } => elementwise::affine(x, mul, add)?,
            Map::Tanh => x.tanh()?,
            Map::Sqrt => x.sqrt()?,
            Map::Log => x.log()?,
            Map::Clamp { min, max } => x.clamp(min, max)?,
        }))
    }
}

/// A function of two elements; or the quotient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// Of tensors of one shape.
    Same(Arithmetic),
    /// The second tensor is repeated along missing dimensions and those of 1. The result has the first one's shape.
    Repeated(Arithmetic),
    /// `a / b`, with the same repetition.
    Divide,
}

/// A function of the elements of two tensors.
pub struct BinaryOp<'a, T = Tensor> {
    /// The function.
    pub function: Binary,
    /// Any shape.
    pub a: &'a T,
    /// The shape of `a`, or one that repeats to it.
    pub b: &'a T,
}

impl<T: Operand> BinaryOp<'_, T> {
    fn check(&self) -> Result<()> {
        let name = match self.function {
            Binary::Same(Arithmetic::Add) => "add",
            Binary::Same(Arithmetic::Sub) => "sub",
            Binary::Same(Arithmetic::Mul) => "mul",
            Binary::Repeated(Arithmetic::Add) => "broadcast_add",
            Binary::Repeated(Arithmetic::Sub) => "broadcast_sub",
            Binary::Repeated(Arithmetic::Mul) => "broadcast_mul",
            Binary::Divide => "broadcast_div",
        };
        let (a, b) = (self.a.dims(), self.b.dims());
        if let Binary::Same(_) = self.function {
            return expect(name, "other", Some(self.b), a);
        }
        let mut pairs = a.iter().rev().zip(b.iter().rev());
        match b.len() <= a.len() && pairs.all(|(a, b)| a == b || *b == 1) {
            true => Ok(()),
            false => Err(refused(name, "other", format!("to repeat to {a:?}"), self.b)),
        }
    }
}

impl<T: Operand> Operation<T> for BinaryOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Binary(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.a))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (a, b) = (self.a.tensor(), self.b.tensor());
        Ok(T::result(match self.function {
            Binary::Same(function) | Binary::Repeated(function) => elementwise::arithmetic(function, a, b)?,
            Binary::Divide => a.broadcast_div(b)?,
        }))
    }
}

/// One number of each line along a dimension, whose size is 1 afterwards.
pub struct ReduceOp<'a, T = Tensor> {
    /// Any shape.
    pub x: &'a T,
    /// The function.
    pub how: Reduction,
    /// The dimension.
    pub dim: usize,
}

impl<T: Operand> Operation<T> for ReduceOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Reduce(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let mut shape = self.x.dims().to_vec();
        match shape.get_mut(self.dim) {
            Some(size) => *size = 1,
            None => return Err(refused("reduce", "x", format!("a dimension {}", self.dim), self.x)),
        }
        let cost = Cost::new(shape.clone(), self.x.dtype());
        // A mean is the sum, then its quotient.
        Ok(if self.how == Reduction::Mean { cost.temporary(&shape, self.x.dtype()) } else { cost })
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let x = self.x.tensor();
        Ok(T::result(match self.how {
            Reduction::Mean => x.mean_keepdim(self.dim)?,
            Reduction::Min => x.min_keepdim(self.dim)?,
            Reduction::Max => x.max_keepdim(self.dim)?,
        }))
    }
}

/// The products `(b, m, n)` of one matrix with the matrices of a tensor.
pub struct PremultiplyOp<'a, T = Tensor> {
    /// `(b, k, n)` in f32.
    pub x: &'a T,
    /// `(m, k)` in f32.
    pub matrix: &'a T,
}

impl<T: Operand> Operation<T> for PremultiplyOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Premultiply(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        match (self.x.dims(), self.matrix.dims()) {
            (&[b, k, n], &[m, same]) if k == same => {
                Ok(Cost::new([b, m, n], self.x.dtype()).flop(linear_flop(b * n, [m, k])))
            }
            (x, _) => Err(refused("premultiplied", "matrix", format!("(m, k) for {x:?}"), self.matrix)),
        }
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (x, matrix) = (self.x.tensor(), self.matrix.tensor());
        let ((b, ..), (m, k)) = (x.dims3()?, matrix.dims2()?);
        Ok(T::result(matrix.broadcast_as((b, m, k))?.matmul(x)?))
    }
}

/// Some rows of a table.
pub struct IndexSelectOp<'a, T = Tensor> {
    /// `(m, ..)`.
    pub table: &'a T,
    /// The numbers of the rows.
    pub rows: &'a [u32],
}

impl<T: Operand> Operation<T> for IndexSelectOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::IndexSelect(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        match self.table.dims().split_first() {
            Some((&size, inner)) if self.rows.iter().all(|&row| (row as usize) < size) => {
                Ok(Cost::new([&[self.rows.len()], inner].concat(), self.table.dtype()))
            }
            _ => Err(refused("index_select", "x", "a row for every index", self.table)),
        }
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let table = self.table.tensor();
        let rows = Tensor::new(self.rows, &Device::Cpu)?.to_device(table.device())?;
        elementwise::index_select(table, &rows).map(T::result)
    }
}
