//! The inputs of a call, read and checked.

use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_nn::TensorLike;

use super::config::ZImageConfig;
use super::positions::{Lengths, Positions};
use super::{NETWORK, PATCH, filled};
use crate::error::{Error, Result};
use crate::flux::attention::Attending;
use crate::rotary;

/// The inputs of a step besides the latents.
pub(super) struct StepInputs<T> {
    /// The text, `(b, s, context_dim)`.
    pub(super) context: T,
    /// 1 for tokens of the text and 0 for filling, `(b, filled s)`.
    pub(super) is_real: Option<T>,
    /// Rows and columns of tokens.
    pub(super) size: [usize; 2],
    /// The attention of image tokens alone, of text tokens alone, and of all tokens.
    pub(super) attending: [Attending<T>; 3],
}

impl<T: TensorLike> StepInputs<T> {
    /// The inputs for latents `x`, checked.
    ///
    /// # Errors
    /// [`Error::Input`] for inputs that do not fit.
    pub(super) fn of(inputs: &Inputs<T>, config: &ZImageConfig, x: &T, timesteps: &T) -> Result<Self> {
        let fail = |input, expected: String, found: &[usize]| {
            Err(Error::Input { network: NETWORK, input, expected, found: found.to_vec() })
        };
        let c = config.in_channels;
        let is_divided = |size: usize| size > 0 && size.is_multiple_of(PATCH);
        let [b, h, w] = match *x.dims() {
            [b, found, h, w] if found == c && b > 0 && is_divided(h) && is_divided(w) => [b, h, w],
            _ => return fail("x", format!("(b, {c}, h, w) with even h and w"), x.dims()),
        };
        if ![&[1][..], &[b]].contains(&timesteps.dims()) {
            return fail("timesteps", format!("(1) or ({b})"), timesteps.dims());
        }
        let found = inputs.get(CONTEXT).map(T::dims).unwrap_or_default();
        let (s, context) = match (inputs.get(CONTEXT), found) {
            (Some(context), &[rows, s, d]) if rows == b && s > 0 && d == config.context_dim => (s, context),
            _ => return fail(CONTEXT.name, format!("({b}, s, {})", config.context_dim), found),
        };
        if let Some(lengths) = inputs.get(TEXT_LENGTHS).filter(|lengths| lengths.dims() != [b]) {
            return fail(TEXT_LENGTHS.name, format!("({b})"), lengths.dims());
        }
        let lengths = Lengths::of(inputs, config)?;
        let size @ [rows, columns] = [h / PATCH, w / PATCH];
        let prepared = rotary::prepared(inputs);
        let Positions { image, text, all } =
            Positions::of(config, prepared.as_ref(), lengths.as_ref(), size, s, timesteps)?;
        let image_tokens = filled(rows * columns) as f64;
        let of_text = lengths.as_ref().map(|lengths| lengths.filled.clone());
        let of_all = of_text.as_ref().map(|text| text.affine(1.0, image_tokens)).transpose()?;
        let attending = [(image, None), (text, of_text), (all, of_all)].map(|(tables, lengths)| Attending {
            num_heads: config.num_heads,
            tables,
            lengths,
        });
        let is_real = lengths.map(|lengths| lengths.is_real);
        Ok(Self { context: context.to_dtype(x.dtype())?, is_real, size, attending })
    }
}
