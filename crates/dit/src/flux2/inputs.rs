//! The inputs of a call, read and checked, and the tokens and positions that they give.

use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, REFERENCE};
use kiln_nn::TensorLike;

use super::NETWORK;
use super::config::Flux2Config;
use crate::error::{Error, Result};
use crate::flux::attention::Attending;
use crate::rotary::{self, Along};
use crate::tokens::{join_tokens, repeated};

/// The number of the first reference image on the first axis of positions, and the distance to the next one.
const REFERENCE_STEP: usize = 10;

/// The inputs of a step.
pub(super) struct StepInputs<T> {
    /// The text, `(b, s, context_dim)`.
    pub(super) context: T,
    /// Tokens of the image, then of all references, `(b, m, in_channels)`.
    pub(super) tokens: T,
    /// Rows and columns of the image.
    pub(super) size: [usize; 2],
    /// The attention of all tokens: those of the image, of references, and of the text.
    pub(super) attending: Attending<T>,
}

impl<T: TensorLike> StepInputs<T> {
    /// The inputs for latents `x`, checked.
    ///
    /// # Errors
    /// [`Error::Input`] for inputs that do not fit.
    pub(super) fn of(inputs: &Inputs<T>, config: &Flux2Config, x: &T, timesteps: &T) -> Result<Self> {
        let fail = |input, expected: String, found: &[usize]| {
            Err(Error::Input { network: NETWORK, input, expected, found: found.to_vec() })
        };
        let c = config.in_channels;
        let [b, h, w] = match *x.dims() {
            [b, found, h, w] if found == c && b * h * w > 0 => [b, h, w],
            _ => return fail("x", format!("(b, {c}, h, w)"), x.dims()),
        };
        if ![&[1][..], &[b]].contains(&timesteps.dims()) {
            return fail("timesteps", format!("(1) or ({b})"), timesteps.dims());
        }
        let found = inputs.get(CONTEXT).map(T::dims).unwrap_or_default();
        let (s, context) = match (inputs.get(CONTEXT), found) {
            (Some(context), &[rows, s, d]) if rows == b && s > 0 && d == config.context_dim => (s, context),
            _ => return fail(CONTEXT.name, format!("({b}, s, {})", config.context_dim), found),
        };
        let mut tokens = image_tokens(x)?;
        let mut grids = vec![(0, [h, w])];
        for (k, reference) in inputs.all(REFERENCE).enumerate() {
            match *reference.dims() {
                [rows, found, h, w] if (rows == b || rows == 1) && found == c && h * w > 0 => {
                    grids.push((REFERENCE_STEP * (k + 1), [h, w]));
                }
                _ => return fail(REFERENCE.name, format!("({b}, {c}, h, w) or (1, {c}, h, w)"), reference.dims()),
            }
            tokens = join_tokens(&tokens, &repeated(image_tokens(&reference.to_dtype(x.dtype())?)?, b)?)?;
        }
        let rotary = config.rotary();
        let needed = grids.iter().map(|(index, [h, w])| (*h).max(*w).max(index + 1)).max().unwrap_or(1).max(s);
        let table = rotary.table_for(rotary::prepared(inputs).as_ref(), needed, timesteps)?;
        let mut parts = Vec::with_capacity(grids.len() + 1);
        for (index, size) in grids {
            let places = [Along::All(index), Along::Rows, Along::Columns(0), Along::All(0)];
            parts.push(rotary.of_grid(&table, (0, &places), size)?);
        }
        let places = [Along::All(0), Along::All(0), Along::All(0), Along::Columns(0)];
        parts.push(rotary.of_grid(&table, (0, &places), [1, s])?);
        let attending = Attending { num_heads: config.num_heads, tables: rotary::joined(&parts)?, lengths: None };
        Ok(Self { context: context.to_dtype(x.dtype())?, tokens, size: [h, w], attending })
    }
}

/// Latents `(b, c, h, w)` as tokens `(b, h * w, c)`.
fn image_tokens<T: TensorLike>(x: &T) -> kiln_nn::Result<T> {
    let [b, c, h, w] = x.size4()?;
    x.to_channels_last()?.reshape(&[b, h * w, c])
}
