//! The inputs of a transformer besides latents and timesteps, checked.

use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, POSITIONS, SKIPPED_LAYERS, TEXT_EMBEDS};
use kiln_network::{Inputs, Slot};
use kiln_nn::TensorLike;

use super::NETWORK;
use super::config::Sd3Config;
use crate::error::{Error, Result};

/// The text as tokens of the network, made once for all steps: `(b, s, channels)`.
pub(super) const TEXT_TOKENS: Slot = Slot::each("text tokens");
/// The embedding of the pooled text, made once for all steps: `(b, channels)`.
pub(super) const POOLED_EMBEDDING: Slot = Slot::each("pooled embedding");

/// The inputs of a call.
pub(super) struct StepInputs<'a, T> {
    /// Tokens `(b, s, context_dim)`.
    pub(super) context: &'a T,
    /// The pooled text `(b, pooled_dim)`.
    pub(super) pooled: &'a T,
    /// `context` embedded, and `pooled` embedded, if that is done already.
    pub(super) embedded: Option<(&'a T, &'a T)>,
    /// Channels that follow the latents', `(b, e, h, w)`.
    pub(super) extra: Option<&'a T>,
    /// The vectors of positions, `(n, channels)`.
    pub(super) positions: Option<&'a T>,
    pub(super) skipped: SkippedLayers,
    /// Rows and columns of tokens.
    pub(super) size: [usize; 2],
}

/// The blocks that the last rows of a batch skip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SkippedLayers {
    /// A bit for each of the first 64 blocks.
    layers: u64,
    rows: usize,
}

impl SkippedLayers {
    /// The rows that skip block `layer`.
    pub(super) fn rows(self, layer: usize) -> usize {
        let bit = u32::try_from(layer).ok().and_then(|layer| self.layers.checked_shr(layer)).unwrap_or(0) & 1;
        if bit == 1 { self.rows } else { 0 }
    }

    /// These blocks, for as many of the last rows as `count` says of their number.
    pub(super) fn of_last(self, count: impl FnOnce(usize) -> usize) -> Self {
        Self { rows: count(self.rows), ..self }
    }
}

impl<'a, T: TensorLike> StepInputs<'a, T> {
    /// Those among `inputs` for latents `x` `(b, c, h, w)` at `timesteps`.
    ///
    /// # Errors
    /// [`Error::Input`] for inputs that do not fit.
    pub(super) fn of(inputs: &'a Inputs<T>, config: &Sd3Config, x: &T, timesteps: &T) -> Result<Self> {
        let [b, _, h, w] = of_latents(x, config)?;
        let size = tokens(config, [h, w])?;
        let (channels, n) = (config.channels(), size[0] * size[1]);
        if timesteps.dims() != [1] && timesteps.dims() != [b] {
            return Err(refused("timesteps", format!("(1) or ({b})"), timesteps.dims()));
        }
        let context = inputs.get(CONTEXT);
        let rows = match context.map(T::dims) {
            Some(&[batch, s, d]) if batch == b && s > 0 && d == config.context_dim => s,
            found => {
                let expected = format!("({b}, s, {})", config.context_dim);
                return Err(refused(CONTEXT.name, expected, found.unwrap_or_default()));
            }
        };
        let pooled = fitting(inputs.get(TEXT_EMBEDS), TEXT_EMBEDS, &[b, config.pooled_dim])?;
        let extra = match config.extra_channels() {
            0 => None,
            extra => Some(fitting(inputs.get(EXTRA_CHANNELS), EXTRA_CHANNELS, &[b, extra, h, w])?),
        };
        let embedded = match (inputs.get(TEXT_TOKENS), inputs.get(POOLED_EMBEDDING)) {
            (Some(text), Some(pooled)) => Some((
                fitting(Some(text), TEXT_TOKENS, &[b, rows, channels])?,
                fitting(Some(pooled), POOLED_EMBEDDING, &[b, channels])?,
            )),
            _ => None,
        };
        let positions = inputs.get(POSITIONS);
        if let Some(positions) = positions {
            fitting(Some(positions), POSITIONS, &[n, channels])?;
        }
        let skipped = SkippedLayers {
            layers: inputs.constant(SKIPPED_LAYERS).unwrap_or(0),
            rows: inputs.rows_of(SKIPPED_LAYERS),
        };
        let last = (u64::BITS - skipped.layers.leading_zeros()) as usize;
        if last > config.num_layers {
            let expected = format!("numbers of blocks less than {}", config.num_layers);
            return Err(refused(SKIPPED_LAYERS, expected, &[last - 1]));
        }
        if skipped.rows > b {
            return Err(refused(SKIPPED_LAYERS, format!("up to {b} rows"), &[skipped.rows]));
        }
        // `context` and `pooled` are there: their shapes fit.
        let context = fitting(context, CONTEXT, &[b, rows, config.context_dim])?;
        Ok(Self { context, pooled, embedded, extra, positions, skipped, size })
    }
}

/// The sizes of latents `x`.
fn of_latents<T: TensorLike>(x: &T, config: &Sd3Config) -> Result<[usize; 4]> {
    let channels = config.in_channels - config.extra_channels();
    match *x.dims() {
        [b, c, h, w] if c == channels && b * h * w > 0 => Ok([b, c, h, w]),
        _ => Err(refused("x", format!("(b, {channels}, h, w)"), x.dims())),
    }
}

/// Rows and columns of tokens of latents of the size `[h, w]`.
///
/// # Errors
/// [`Error::Input`] for sizes that patches do not fill, or that have more tokens than the table has positions.
pub(super) fn tokens(config: &Sd3Config, size: [usize; 2]) -> Result<[usize; 2]> {
    let patch = config.patch_size;
    if size.iter().any(|size| size % patch != 0) {
        return Err(refused("size of the latents", format!("multiples of {patch}"), &size));
    }
    let tokens = size.map(|size| size / patch);
    if tokens.iter().any(|&tokens| tokens > config.pos_embed_max_size) {
        let most = patch * config.pos_embed_max_size;
        return Err(refused("size of the latents", format!("at most ({most}, {most})"), &size));
    }
    Ok(tokens)
}

/// An input that is there in this shape.
fn fitting<'a, T: TensorLike>(input: Option<&'a T>, slot: Slot, shape: &[usize]) -> Result<&'a T> {
    match input {
        Some(input) if input.dims() == shape => Ok(input),
        other => Err(refused(slot.name, format!("{shape:?}"), other.map(T::dims).unwrap_or_default())),
    }
}

/// The error for an input that does not fit.
pub(super) fn refused(input: &'static str, expected: String, found: &[usize]) -> Error {
    Error::Input { network: NETWORK, input, expected, found: found.to_vec() }
}
