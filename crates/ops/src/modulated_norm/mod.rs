//! Normalizations of rows without a bias, and with the modulation of diffusion transformers.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "modulated_norm";

/// The statistics of a normalization of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowNorm {
    /// Mean 0 and variance 1 (Ba et al., arXiv 1607.06450).
    Layer,
    /// Mean square 1 (Zhang and Sennrich, arXiv 1910.07467).
    Rms,
}

/// `norm(x) gamma (1 + scale) + shift` for every row of `x` `(.., c)`: diffusion transformers modulate a normalization by
/// vectors of the timestep (adaLN; Peebles and Xie, arXiv 2212.09748). Sums, products and statistics are f32, and the
/// result, of the shape of `x`, is rounded once.
///
/// `gamma` is `(c)`. `scale` and `shift` are `(b, c)` for rows `(b, .., c)`, or `(1, c)` for all; they may be slices of
/// wider rows. An absent operand changes nothing. `eps` is added to the variance, or to the mean square.
///
/// # Errors
/// [`crate::Error::Shape`] for an operand that does not fit.
pub fn modulated_norm(inputs: ModulatedNormOp<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    inputs.check()?;
    backend::run(&inputs, out)
}

/// `x / sqrt(mean(x^2) + eps) gamma` for every row of `x` `(.., c)`, with an optional `gamma` `(c)`.
///
/// # Errors
/// [`crate::Error::Shape`] for an operand that does not fit.
pub fn rms_norm(x: &Tensor, gamma: Option<&Tensor>, eps: f64, out: Option<&Tensor>) -> Result<Tensor> {
    modulated_norm(ModulatedNormOp { x, norm: RowNorm::Rms, gamma, scale: None, shift: None, eps }, out)
}

/// [`modulated_norm`] as a value: its operands.
pub struct ModulatedNormOp<'a, T = Tensor> {
    /// `(b, .., c)`.
    pub x: &'a T,
    /// The statistics.
    pub norm: RowNorm,
    /// `(c)`.
    pub gamma: Option<&'a T>,
    /// `(b, c)` or `(1, c)`.
    pub scale: Option<&'a T>,
    /// `(b, c)` or `(1, c)`.
    pub shift: Option<&'a T>,
    /// Added to the variance, or to the mean square.
    pub eps: f64,
}

type Call<'a> = ModulatedNormOp<'a>;

impl<T: Operand> ModulatedNormOp<'_, T> {
    fn check(&self) -> Result<()> {
        let (b, c) = match *self.x.dims() {
            [c] => (1, c),
            [b, .., c] => (b, c),
            [] => return Err(refused(OP, "x", "(b, .., c)", self.x)),
        };
        expect(OP, "gamma", self.gamma, &[c])?;
        expect(OP, "scale", self.scale.filter(|scale| scale.dims() != [1, c]), &[b, c])?;
        expect(OP, "shift", self.shift.filter(|shift| shift.dims() != [1, c]), &[b, c])
    }

    /// Rows of each image.
    fn rows(&self) -> usize {
        let dims = self.x.dims();
        dims.get(1..dims.len() - 1).map_or(1, |rows| rows.iter().product())
    }
}

impl<T: Operand> Operation<T> for ModulatedNormOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::ModulatedNorm(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.x))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let Self { x, norm, gamma, scale, shift, eps } = *self;
        let [gamma, scale, shift] = [gamma, scale, shift].map(|x| x.map(T::tensor));
        modulated_norm(ModulatedNormOp { x: x.tensor(), norm, gamma, scale, shift, eps }, None).map(T::result)
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
        let work = Work::new(&[("x", self.x)]).and("gamma", self.gamma).and("scale", self.scale);
        work.and("shift", self.shift).config(self.norm)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self)
    }
}
