//! Rotary position embeddings of queries and keys, after an optional normalization of each head.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::operation::{Cost, Elements, Operand, Operation, expect, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "rope";

/// Which channels of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// `2 i` and `2 i + 1`: FLUX, Z-Image.
    Interleaved,
    /// `i` and `i + head_dim / 2`: Qwen3.
    Halves,
}

/// Rotary position embedding (Su et al., arXiv 2104.09864): `x` `(b, s, num_heads * head_dim)`, and tables `cos` and `sin` of the
/// angles, `(s, head_dim / 2)`, or `(b, s, head_dim / 2)` for tokens that differ between images, in f32. Every pair
/// `(x_0, x_1)` of a head becomes `(x_0 cos - x_1 sin, x_0 sin + x_1 cos)`. The result has the shape of `x`.
///
/// With a `norm`, each head is first scaled to mean square 1 and multiplied by gamma, as [`crate::rms_norm`] over its
/// channels. Everything is f32 and rounded once.
///
/// # Errors
/// [`Error::Shape`] for an operand that does not fit, [`Error::DType`] for tables in another type than f32, [`Error::Config`] if
/// the heads do not divide the channels or have an odd number of them.
pub fn rope(inputs: RopeOp<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    inputs.check()?;
    backend::run(&inputs, out)
}

/// [`rope`] as a value: its operands.
pub struct RopeOp<'a, T = Tensor> {
    /// Queries or keys, `(b, s, num_heads * head_dim)`.
    pub x: &'a T,
    /// `(s, head_dim / 2)` or `(b, s, head_dim / 2)` in f32.
    pub cos: &'a T,
    /// Of the shape of `cos`, in f32.
    pub sin: &'a T,
    /// Gamma `(head_dim)` and epsilon of the normalization of each head.
    pub norm: Option<(&'a T, f64)>,
    /// The number of heads.
    pub num_heads: usize,
    /// The pairs.
    pub pairs: RopePairs,
}

type Call<'a> = RopeOp<'a>;

/// The shapes of a call that has been checked.
#[derive(Clone, Copy)]
struct Shapes {
    b: usize,
    s: usize,
    head_dim: usize,
    /// Whether every image has tables of its own.
    by_image: bool,
}

impl<T: Operand> RopeOp<'_, T> {
    fn check(&self) -> Result<Shapes> {
        let [b, s, c] = sizes(OP, "x", self.x, "(b, s, num_heads * head_dim)")?;
        let head_dim = c / self.num_heads.max(1);
        if self.num_heads == 0 || c % self.num_heads != 0 || !head_dim.is_multiple_of(2) {
            let message = format!("{c} channels are not {} heads with an even number of channels", self.num_heads);
            return Err(Error::Config { op: OP, message });
        }
        let half = head_dim / 2;
        let by_image = self.cos.dims().len() == 3;
        let table = if by_image { vec![b, s, half] } else { vec![s, half] };
        for (name, operand) in [("cos", self.cos), ("sin", self.sin)] {
            expect(OP, name, Some(operand), &table)?;
            if operand.dtype() != DType::F32 {
                return Err(Error::DType { op: OP, operand: name, expected: DType::F32, found: operand.dtype() });
            }
        }
        expect(OP, "gamma", self.norm.map(|(gamma, _)| gamma), &[head_dim])?;
        Ok(Shapes { b, s, head_dim, by_image })
    }
}

impl<T: Operand> Operation<T> for RopeOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Rope(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.x))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let Self { x, cos, sin, norm, num_heads, pairs } = *self;
        let [x, cos, sin] = [x, cos, sin].map(T::tensor);
        let norm = norm.map(|(gamma, eps)| (gamma.tensor(), eps));
        rope(RopeOp { x, cos, sin, norm, num_heads, pairs }, None).map(T::result)
    }
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        let work = Work::new(&[("x", self.x), ("cos", self.cos), ("sin", self.sin)]);
        work.and("gamma", self.norm.map(|(gamma, _)| gamma)).config(self.pairs)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self, self.check()?)
    }
}
