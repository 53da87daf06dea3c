//! How much a tensor has changed, image by image.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "change_sums";
/// Elements of a part of an image in [`change_sums`]. A multiple of the elements of a vector.
pub const CHANGE_PART: usize = 8192;

/// For each image of `now` `(b, ..)` the sums of `|now - before|` and of `|before|`, as sums of parts of the image: `(b, parts, 2)` in
/// f32. `before` has the shape of `now`. The parts and their order depend on the size of an image alone, so that an image has the
/// same sums in every batch.
///
/// # Errors
/// [`crate::Error::Shape`] for an operand that does not fit.
pub fn change_sums(now: &Tensor, before: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let call = Call { now, before };
    call.check()?;
    backend::run(&call, out)
}

/// [`change_sums`] as a value.
pub struct ChangeSumsOp<'a, T = Tensor> {
    /// `(b, ..)`.
    pub now: &'a T,
    /// A tensor of the shape of `now`.
    pub before: &'a T,
}

type Call<'a> = ChangeSumsOp<'a>;

impl<T: Operand> ChangeSumsOp<'_, T> {
    fn check(&self) -> Result<()> {
        if self.now.dims().is_empty() {
            return Err(refused(OP, "now", "(b, ..)", self.now));
        }
        expect(OP, "before", Some(self.before), self.now.dims())
    }

    /// Elements of each image.
    fn image(&self) -> usize {
        self.now.dims().iter().skip(1).product()
    }

    /// The shape of the result.
    fn shape(&self) -> [usize; 3] {
        [self.now.dims().first().copied().unwrap_or(0), self.image().div_ceil(CHANGE_PART), 2]
    }
}

impl<T: Operand> Operation<T> for ChangeSumsOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::ChangeSums(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::new(self.shape(), DType::F32))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        change_sums(self.now.tensor(), self.before.tensor(), None).map(T::result)
    }
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.now
    }

    fn work(&self) -> Work {
        Work::new(&[("now", self.now), ("before", self.before)])
    }

    fn reference(&self) -> Result<Tensor> {
        let ([b, parts, _], image) = (self.shape(), self.image());
        let flat = |x: &Tensor| -> Result<Tensor> { Ok(x.to_dtype(DType::F32)?.reshape((b, image))?) };
        let (now, before) = (flat(self.now)?, flat(self.before)?);
        let change = (now - &before)?.abs()?;
        let size = before.abs()?;
        let mut sums = Vec::with_capacity(parts);
        for start in (0..image).step_by(CHANGE_PART) {
            let len = CHANGE_PART.min(image - start);
            let of = |x: &Tensor| x.narrow(1, start, len)?.sum_keepdim(1);
            sums.push(Tensor::cat(&[of(&change)?, of(&size)?], 1)?);
        }
        Ok(Tensor::stack(&sums, 1)?)
    }
}
