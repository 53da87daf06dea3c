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
use crate::error::{Error, Result};
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::{Target, Workspace};
pub use moments::{GroupNormApplyOp, GroupNormMoments, GroupNormStatistics, group_norm_apply};
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
    let shape = GroupNormOp { x, gamma, beta, config }.check()?;
    backend::run(&Call { x, gamma, beta, config, shape }, out)
}

/// [`group_norm`] as a value.
pub struct GroupNormOp<'a, T = Tensor> {
    /// `(b, .., c)`.
    pub x: &'a T,
    /// `(c)`.
    pub gamma: &'a T,
    /// `(c)`.
    pub beta: &'a T,
    /// The groups.
    pub config: GroupNorm,
}

impl<T: Operand> GroupNormOp<'_, T> {
    /// Images, and channels.
    fn check(&self) -> Result<(usize, usize)> {
        let (b, c) = check(self.x, self.config)?;
        check_affine(self.gamma, self.beta, c)?;
        Ok((b, c))
    }
}

impl<T: Operand> Operation<T> for GroupNormOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GroupNorm(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        self.check()?;
        Ok(Cost::like(self.x).workspace(sums_workspace(target, self.x, self.config)?))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let Self { x, gamma, beta, config } = *self;
        group_norm(x.tensor(), gamma.tensor(), beta.tensor(), config, None).map(T::result)
    }
}

/// Memory of the sums of the groups of `x` `(b, .., c)`.
///
/// # Errors
/// The errors of [`group_norm`] for `x`.
pub fn sums_workspace<T: Operand>(target: Target, x: &T, config: GroupNorm) -> Result<Workspace> {
    let (b, c) = check(x, config)?;
    let pixels = x.dims().iter().product::<usize>() / (b * c).max(1);
    Ok(group_norm_workspace(target, b, pixels, c, config.num_groups))
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
fn check<T: Operand>(x: &T, config: GroupNorm) -> Result<(usize, usize)> {
    let (&[b, ..], Some(&c)) = (x.dims(), x.dims().last()) else {
        return Err(refused(OP, "x", "(b, .., c)", x));
    };
    if config.num_groups == 0 || c % config.num_groups != 0 {
        let message = format!("{} groups do not divide {c} channels", config.num_groups);
        return Err(Error::Config { op: OP, message });
    }
    Ok((b, c))
}

fn check_affine<T: Operand>(gamma: &T, beta: &T, c: usize) -> Result<()> {
    expect(OP, "gamma", Some(gamma), &[c])?;
    expect(OP, "beta", Some(beta), &[c])
}
