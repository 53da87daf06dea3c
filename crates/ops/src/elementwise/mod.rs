//! Arithmetic element by element, conversions between types, copies, and rows by their numbers.
//!
//! On the CPU these are candle's primitives. On GPUs they are kernels of this crate, since candle brings its own as PTX,
//! which the driver compiles when they are used for the first time on a machine: that takes 10 s for these functions.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::Result;
use crate::trace::Work;

/// A function of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
}

/// `function` of the elements of `a` and `b`. The shape of `b` is that of `a`, or the last dimensions of it: then `b` is
/// repeated for the others.
///
/// # Errors
/// Errors of candle for other shapes and for different types.
pub fn arithmetic(function: Arithmetic, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    backend::run(&Binary { function, a, b }, None)
}

/// `mul * x + add`, in the type of `x`.
///
/// # Errors
/// Errors of candle.
pub fn affine(x: &Tensor, mul: f64, add: f64) -> Result<Tensor> {
    backend::run(&Affine { x, mul, add }, None)
}

/// `x` in another type, or `x` itself if it has that type.
///
/// # Errors
/// Errors of candle.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x.clone()) } else { backend::run(&Cast { x, dtype }, None) }
}

/// `x` with its elements one after another in memory: itself where they are.
///
/// # Errors
/// Errors of candle.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.clone()) } else { copy(x) }
}

/// A copy of `x` in memory of its own, with its elements one after another.
///
/// # Errors
/// Errors of candle.
pub fn copy(x: &Tensor) -> Result<Tensor> {
    backend::run(&Copy { x }, None)
}

/// The sum of factor times tensor in f32, for tensors of one shape: the terms are rounded, then added one after another, the
/// same on every device. Terms with factor 0 are skipped, so that they cannot introduce a NaN.
///
/// # Errors
/// Errors of candle: for different shapes, and if there is no term.
pub fn weighted_sum(terms: &[(f64, &Tensor)]) -> Result<Tensor> {
    let Some((_, like)) = terms.first() else {
        return Err(candle_core::Error::Msg("a weighted sum of no terms".into()).into());
    };
    let mut used = Vec::with_capacity(terms.len());
    for &(factor, tensor) in terms.iter().filter(|(factor, _)| *factor != 0.0) {
        used.push((factor, cast(tensor, DType::F32)?));
    }
    match &used[..] {
        [] => Ok(cast(like, DType::F32)?.zeros_like()?),
        [(factor, term)] if *factor == 1.0 => Ok(term.clone()),
        _ => backend::run(&WeightedSum { terms: &used }, None),
    }
}

/// Rows `rows` `(n)` in u32 of `table` `(m, ..)`, as `(n, ..)`.
///
/// # Errors
/// Errors of candle. On a GPU a number that is not below `m` is not noticed: the caller checks it.
pub fn index_select(table: &Tensor, rows: &Tensor) -> Result<Tensor> {
    backend::run(&IndexSelect { table, rows }, None)
}

struct Binary<'a> {
    function: Arithmetic,
    a: &'a Tensor,
    b: &'a Tensor,
}

impl Operator for Binary<'_> {
    fn name(&self) -> &'static str {
        match self.function {
            Arithmetic::Add => "add",
            Arithmetic::Sub => "sub",
            Arithmetic::Mul => "mul",
        }
    }

    fn input(&self) -> &Tensor {
        self.a
    }

    fn work(&self) -> Work {
        Work::new(&[("a", self.a), ("b", self.b)])
    }

    fn reference(&self) -> Result<Tensor> {
        let Self { a, b, .. } = *self;
        let is_same = a.dims() == b.dims();
        Ok(match self.function {
            Arithmetic::Add if is_same => a.add(b)?,
            Arithmetic::Sub if is_same => a.sub(b)?,
            Arithmetic::Mul if is_same => a.mul(b)?,
            Arithmetic::Add => a.broadcast_add(b)?,
            Arithmetic::Sub => a.broadcast_sub(b)?,
            Arithmetic::Mul => a.broadcast_mul(b)?,
        })
    }
}

struct Affine<'a> {
    x: &'a Tensor,
    mul: f64,
    add: f64,
}

impl Operator for Affine<'_> {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(self.x.affine(self.mul, self.add)?)
    }
}

struct Cast<'a> {
    x: &'a Tensor,
    dtype: DType,
}

impl Operator for Cast<'_> {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(self.x.to_dtype(self.dtype)?)
    }
}

struct Copy<'a> {
    x: &'a Tensor,
}

impl Operator for Copy<'_> {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(self.x.force_contiguous()?)
    }
}

/// At least one term; all of them are in f32.
struct WeightedSum<'a> {
    terms: &'a [(f64, Tensor)],
}

impl Operator for WeightedSum<'_> {
    fn name(&self) -> &'static str {
        "weighted_sum"
    }

    fn input(&self) -> &Tensor {
        &self.terms[0].1
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.input())])
    }

    fn reference(&self) -> Result<Tensor> {
        let term = |(factor, tensor): &(f64, Tensor)| -> Result<Tensor> {
            Ok(if *factor == 1.0 { tensor.clone() } else { tensor.affine(*factor, 0.0)? })
        };
        self.terms[1..].iter().try_fold(term(&self.terms[0])?, |sum, next| Ok((sum + term(next)?)?))
    }
}

struct IndexSelect<'a> {
    table: &'a Tensor,
    rows: &'a Tensor,
}

impl Operator for IndexSelect<'_> {
    fn name(&self) -> &'static str {
        "index_select"
    }

    fn input(&self) -> &Tensor {
        self.table
    }

    fn work(&self) -> Work {
        Work::new(&[("table", self.table), ("rows", self.rows)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(self.table.index_select(self.rows, 0)?)
    }
}

impl Kernel<Cpu> for Binary<'_> {}
impl Kernel<Cpu> for Affine<'_> {}
impl Kernel<Cpu> for Cast<'_> {}
impl Kernel<Cpu> for Copy<'_> {}
impl Kernel<Cpu> for WeightedSum<'_> {}
impl Kernel<Cpu> for IndexSelect<'_> {}
