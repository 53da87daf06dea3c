//! Group normalization of a map that is processed in strips: a first pass over all strips computes the statistics, a
//! second one normalizes.

use candle_core::{Device, Tensor};

use super::{GroupNorm, OP, check, check_affine, cpu, reference};
use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::{Error, Result};
use crate::operation::{Cost, Elements, Operand, Operation, expect};
use crate::portable;
use crate::trace::{self, Work};
use crate::workspace::Target;

const APPLY: &str = "group_norm_apply";

/// The moments of one image for its [`group_norm`](crate::group_norm). Pixels are added in their order, any number at a
/// time; on the CPU the result does not depend on that number.
pub struct GroupNormMoments {
    config: GroupNorm,
    pixels: usize,
    channels: Option<usize>,
    state: Option<State>,
}

enum State {
    Cpu(cpu::Moments),
    /// The means of the groups and their sums of squared differences, `(num_groups, 2)` in f32, on a GPU.
    Gpu(Tensor),
}

/// The statistics of an image for its group normalization.
pub struct GroupNormStatistics {
    config: GroupNorm,
    pixels: usize,
    channels: usize,
    known: Known,
}

enum Known {
    /// The scale and the shift of every channel.
    Cpu {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Gpu {
        moments: Tensor,
        gamma: Tensor,
        beta: Tensor,
    },
}

impl GroupNormMoments {
    /// The moments of no pixels.
    pub fn new(config: GroupNorm) -> Self {
        Self { config, pixels: 0, channels: None, state: None }
    }

    /// Adds the next pixels, `x` `(1, .., c)`.
    ///
    /// # Errors
    /// [`Error::Shape`] for pixels of several images or with another number of channels than before, [`Error::Config`]
    /// where the groups do not divide the channels.
    pub fn add(&mut self, x: &Tensor) -> Result<()> {
        let (b, c) = check(x, self.config)?;
        let channels = *self.channels.get_or_insert(c);
        if b != 1 || c != channels {
            let expected = format!("(1, .., {channels})");
            return Err(Error::Shape { op: OP, operand: "x", expected, found: x.dims().to_vec() });
        }
        let pixels = x.elem_count() / c.max(1);
        if pixels == 0 {
            return Ok(());
        }
        self.state = Some(match (x.device(), self.state.take()) {
            (Device::Cpu, state) => {
                let mut moments = match state {
                    Some(State::Cpu(moments)) => moments,
                    _ => cpu::Moments::default(),
                };
                moments.add(x)?;
                State::Cpu(moments)
            }
            (_, state) => {
                let before = match &state {
                    Some(State::Gpu(moments)) => Some((moments, self.pixels)),
                    _ => None,
                };
                let call = AddMoments { x, config: self.config, c, before };
                State::Gpu(match backend::launch(&call, None)? {
                    Some(moments) => moments,
                    None => call.reference()?,
                })
            }
        });
        self.pixels += pixels;
        Ok(())
    }

    /// The statistics of all pixels that were added, with `gamma` and `beta` `(c)`.
    ///
    /// # Errors
    /// [`Error::Shape`] where `gamma` or `beta` does not fit, [`Error::Config`] where no pixel was added.
    pub fn finish(self, gamma: &Tensor, beta: &Tensor) -> Result<GroupNormStatistics> {
        let Self { config, pixels, channels, state } = self;
        let (Some(channels), Some(state)) = (channels, state) else {
            return Err(Error::Config { op: OP, message: "no pixel was added to the moments".into() });
        };
        check_affine(gamma, beta, channels)?;
        let known = match state {
            State::Cpu(moments) => {
                let (scale, shift) = moments.affine(gamma, beta, config, pixels)?;
                Known::Cpu { scale, shift }
            }
            State::Gpu(moments) => Known::Gpu { moments, gamma: gamma.clone(), beta: beta.clone() },
        };
        Ok(GroupNormStatistics { config, pixels, channels, known })
    }
}

/// Normalizes `x`, any pixels `(1, .., c)` of the image of `statistics`, and applies the activation of its
/// configuration. On the CPU the result has the same bits as [`group_norm`](crate::group_norm) of the whole image.
///
/// # Errors
/// [`Error::Shape`] where `x` has several images or other channels than the statistics.
pub fn group_norm_apply(x: &Tensor, statistics: &GroupNormStatistics, out: Option<&Tensor>) -> Result<Tensor> {
    let GroupNormStatistics { config, pixels, channels, known } = statistics;
    if (x.dims().first(), x.dims().last()) != (Some(&1), Some(channels)) {
        let expected = format!("(1, .., {channels})");
        return Err(Error::Shape { op: OP, operand: "x", expected, found: x.dims().to_vec() });
    }
    match known {
        Known::Cpu { scale, shift } => {
            let work = || Work::new(&[("x", x)]).config(config);
            trace::operator(APPLY, work, || cpu::apply_known(x, scale, shift, config.silu, out))
        }
        Known::Gpu { moments, gamma, beta } => {
            backend::run(&Apply { x, gamma, beta, moments: (moments, *pixels), config: *config }, out)
        }
    }
}

/// [`group_norm_apply`] as a value.
pub struct GroupNormApplyOp<'a, T: Operand = Tensor> {
    /// `(1, .., c)`.
    pub x: &'a T,
    /// The statistics of the whole image.
    pub statistics: &'a T::Statistics,
    /// Of the shape of `x`.
    pub out: Option<&'a T>,
}

impl<T: Operand> Operation<T> for GroupNormApplyOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::GroupNormApply(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        expect(OP, "out", self.out, self.x.dims())?;
        Ok(Cost::like(self.x))
    }

    fn out(&self) -> Option<&T> {
        self.out
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        group_norm_apply(self.x.tensor(), self.statistics, self.out.map(T::tensor)).map(T::result)
    }
}

/// The moments of `x` `(1, .., c)`, joined with those of the earlier pixels, whose number is in `before`. For devices
/// other than the CPU, which has its own state.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels read the number of channels"))]
pub(super) struct AddMoments<'a> {
    pub(super) x: &'a Tensor,
    pub(super) config: GroupNorm,
    pub(super) c: usize,
    pub(super) before: Option<(&'a Tensor, usize)>,
}

impl Kernel<Cpu> for AddMoments<'_> {}

impl Operator for AddMoments<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)]).config(self.config)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::moments(self.x, self.config, self.before)
    }
}

/// Normalizes `x` `(1, .., c)` by the moments of the whole image and the number of its pixels. For devices other than
/// the CPU.
pub(super) struct Apply<'a> {
    pub(super) x: &'a Tensor,
    pub(super) gamma: &'a Tensor,
    pub(super) beta: &'a Tensor,
    pub(super) moments: (&'a Tensor, usize),
    pub(super) config: GroupNorm,
}

impl Kernel<Cpu> for Apply<'_> {}

impl Operator for Apply<'_> {
    fn name(&self) -> &'static str {
        APPLY
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)]).config(self.config)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::apply(self.x, self.gamma, self.beta, self.moments, self.config)
    }
}
