//! Group normalisation of a map that is never whole: first all pixels are seen, strip by strip, then they are normalised,
//! strip by strip again.

use candle_core::{Device, Tensor};

use super::{GroupNorm, OP, check, check_affine, cpu, cuda, reference};
use crate::error::{Error, Result};
use crate::output::store;
use crate::trace::{self, Work};

/// What a [`group_norm`](crate::group_norm) of one image is to know of it: made of the image's pixels in their order, as
/// many at a time as one likes. On the processor the number changes no bit.
pub struct GroupNormMoments {
    config: GroupNorm,
    pixels: usize,
    channels: Option<usize>,
    state: Option<State>,
}

enum State {
    Processor(cpu::Moments),
    /// The groups' means and sums of squared differences from them, `(num_groups, 2)` in f32, on a card.
    Card(Tensor),
}

/// A group normalisation whose statistics are known.
pub struct GroupNormStatistics {
    config: GroupNorm,
    pixels: usize,
    channels: usize,
    known: Known,
}

enum Known {
    /// Scale and shift of every channel.
    Processor {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Card {
        moments: Tensor,
        gamma: Tensor,
        beta: Tensor,
    },
}

impl GroupNormMoments {
    /// Of no pixels yet.
    pub fn new(config: GroupNorm) -> Self {
        Self { config, pixels: 0, channels: None, state: None }
    }

    /// Adds the next pixels, `x` `(1, .., c)`.
    ///
    /// # Errors
    /// [`Error::Shape`] where these are pixels of several images or have other channels than those before,
    /// [`Error::Config`] where the groups do not divide the channels.
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
                    Some(State::Processor(moments)) => moments,
                    _ => cpu::Moments::default(),
                };
                moments.add(x)?;
                State::Processor(moments)
            }
            (_, state) => {
                let before = match &state {
                    Some(State::Card(moments)) => Some((moments, self.pixels)),
                    _ => None,
                };
                State::Card(match cuda::group_norm_moments(x, self.config, c, before)? {
                    Some(moments) => moments,
                    None => reference::moments(x, self.config, before)?,
                })
            }
        });
        self.pixels += pixels;
        Ok(())
    }

    /// The normalisation by all pixels that were added, with `gamma` and `beta` `(c)`.
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
            State::Processor(moments) => {
                let (scale, shift) = moments.affine(gamma, beta, config, pixels)?;
                Known::Processor { scale, shift }
            }
            State::Card(moments) => Known::Card { moments, gamma: gamma.clone(), beta: beta.clone() },
        };
        Ok(GroupNormStatistics { config, pixels, channels, known })
    }
}

/// Normalises `x`, any pixels `(1, .., c)` of the image of `statistics`, and activates them as its configuration says.
/// On the processor these are the bits of [`group_norm`](crate::group_norm) of the whole image.
///
/// # Errors
/// [`Error::Shape`] where `x` has several images or other channels than the statistics.
pub fn group_norm_apply(x: &Tensor, statistics: &GroupNormStatistics, out: Option<&Tensor>) -> Result<Tensor> {
    let GroupNormStatistics { config, pixels, channels, known } = statistics;
    if (x.dims().first(), x.dims().last()) != (Some(&1), Some(channels)) {
        let expected = format!("(1, .., {channels})");
        return Err(Error::Shape { op: OP, operand: "x", expected, found: x.dims().to_vec() });
    }
    let work = || Work::new(&[("x", x)]).config(config);
    trace::operator("group_norm_apply", work, || match known {
        Known::Processor { scale, shift } => cpu::apply_known(x, scale, shift, config.silu, out),
        Known::Card { moments, gamma, beta } => {
            match cuda::group_norm_apply(x, gamma, beta, (moments, *pixels), *config, out)? {
                Some(y) => Ok(y),
                None => store(OP, reference::apply(x, gamma, beta, (moments, *pixels), *config)?, out),
            }
        }
    })
}
