//! How many values of a tensor are infinite or NaN.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Operator};
use crate::cast;
use crate::error::Result;
use crate::trace::Work;

const OP: &str = "count_not_finite";

/// How many values of `x` are infinite or NaN. Waits for the device.
///
/// # Errors
/// Errors of the device.
pub fn count_not_finite(x: &Tensor) -> Result<usize> {
    let counts = backend::run(&Call { x: &cast(x, DType::F32)? }, None)?;
    Ok(counts.to_vec1::<u32>()?.into_iter().map(|count| count as usize).sum())
}

/// Counts of parts of `x`, which is in f32: `(parts)` in u32.
struct Call<'a> {
    x: &'a Tensor,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    /// The difference of a value and itself is 0, or NaN, which equals nothing.
    fn reference(&self) -> Result<Tensor> {
        let difference = self.x.sub(self.x)?;
        Ok(difference.ne(&difference)?.to_dtype(DType::U32)?.sum_all()?.reshape(1)?)
    }
}
