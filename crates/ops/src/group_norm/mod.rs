//! Group normalization, optionally followed by SiLU.

mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod moments;
mod reference;
#[cfg(test)]
mod tests;
mod workspace;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::trace::Work;
pub use moments::{GroupNormMoments, GroupNormStatistics, group_norm_apply};
pub use workspace::group_norm_workspace;

const OP: &str = "group_norm";

/// The configuration of [`group_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// The number of groups, a divisor of the number of channels.
    pub num_groups: usize,
    /// Added to the variance before its square root.
    pub eps: f64,
    /// Whether `silu(y) = y / (1 + exp(-y))` follows.
    pub silu: bool,
}

/// Group Normalization (Wu and He, arXiv 1803.08494) over `x` `(b, .., c)`: each image and group of `c / num_groups`
/// neighboring channels is shifted and scaled to mean 0 and variance 1, then `y = x gamma + beta` with `gamma` and
/// `beta` `(c)`, then SiLU where the configuration has it. The result has the shape of `x`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit, [`Error::Config`] where the groups do not divide the channels.
pub fn group_norm(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    config: GroupNorm,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let (b, c) = check(x, config)?;
    check_affine(gamma, beta, c)?;
    backend::run(&Call { x, gamma, beta, config, shape: (b, c) }, out)
}

struct Call<'a> {
    x: &'a Tensor,
    gamma: &'a Tensor,
    beta: &'a Tensor,
    config: GroupNorm,
    /// Images, and channels.
    shape: (usize, usize),
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x), ("gamma", self.gamma), ("beta", self.beta)]).config(self.config)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.gamma, self.beta, self.config)
    }
}

/// Images and channels of `x` `(b, .., c)`.
fn check(x: &Tensor, config: GroupNorm) -> Result<(usize, usize)> {
    let (&[b, ..], Some(&c)) = (x.dims(), x.dims().last()) else {
        return Err(Error::Shape { op: OP, operand: "x", expected: "(b, .., c)".into(), found: x.dims().to_vec() });
    };
    if config.num_groups == 0 || c % config.num_groups != 0 {
        let message = format!("{} groups do not divide {c} channels", config.num_groups);
        return Err(Error::Config { op: OP, message });
    }
    Ok((b, c))
}

fn check_affine(gamma: &Tensor, beta: &Tensor, c: usize) -> Result<()> {
    expect_shape(OP, "gamma", gamma.dims(), &[c])?;
    expect_shape(OP, "beta", beta.dims(), &[c])
}
