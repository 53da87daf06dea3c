//! Classifier-free guidance.

#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::error::{Error, Result, expect_shape};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

const OP: &str = "guidance";

/// `uncond + scale (cond - uncond)` (Ho and Salimans, arXiv 2207.12598) in f32: `both` `(2 n, ..)` holds the
/// unconditional half first, `scale` `(1)` is f32 and lies where `both` does, so that it can change under a captured
/// step. The result is `(n, ..)` in f32.
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
    let work = || Work::new(&[("both", both), ("scale", scale)]);
    trace::operator(OP, work, || match cuda::guidance(both, scale, &shape, out)? {
        Some(y) => Ok(y),
        None => store(OP, reference::forward(both, scale)?, out),
    })
}
