//! Classifier-free guidance.

#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::trace::Work;

const OP: &str = "guidance";

/// `uncond + scale (cond - uncond)` (Ho and Salimans, arXiv 2207.12598) in f32. `both` `(2 n, ..)` has the
/// unconditional half first. `scale` `(1)` is an f32 tensor on the device of `both`, so that it can change between the
/// replays of a recorded step. The result is `(n, ..)` in f32.
///
/// # Errors
/// [`Error::Shape`] where the batch is odd or an operand does not fit.
pub fn guidance(both: &Tensor, scale: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let shape = match both.dims().split_first() {
        Some((&batch, inner)) if batch % 2 == 0 => [&[batch / 2], inner].concat(),
        _ => {
            let found = both.dims().to_vec();
            return Err(Error::Shape { op: OP, operand: "both", expected: "(2 n, ..)".into(), found });
        }
    };
    expect_shape(OP, "scale", scale.dims(), &[1])?;
    backend::run(&Call { both, scale, shape }, out)
}

#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels read the shape"))]
struct Call<'a> {
    both: &'a Tensor,
    scale: &'a Tensor,
    /// The shape of the result.
    shape: Vec<usize>,
}

/// The reference runs on the CPU: a step has one call over a few latents.
impl Kernel<Cpu> for Call<'_> {}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.both
    }

    fn work(&self) -> Work {
        Work::new(&[("both", self.both), ("scale", self.scale)])
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.both, self.scale)
    }
}
