//! The inputs of a call, read and checked, and the tokens that they give.

use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, REFERENCE, TEXT_EMBEDS, TEXT_LENGTHS};
use kiln_nn::TensorLike;

use super::attention::Attending;
use super::dims::{FluxDims, PATCH};
use super::packing::{join_channels, pack};
use super::positions::{self, Grid};
use crate::block_cache::BlockCache;
use crate::error::{Error, Result};
use crate::rotary;
use crate::tokens::{join_tokens, repeated};

/// The inputs besides latents and timesteps.
pub(crate) struct TokenInputs<T> {
    /// The text, `(b, s, context_dim)`.
    pub(crate) context: T,
    /// The pooled text, `(b, pooled_dim)`.
    pub(crate) pooled: Option<T>,
    /// The guidance, `(1)` in f32.
    pub(crate) guidance: Option<T>,
    /// Tokens of each row's text that are not masked, `(b)` in f32.
    pub(crate) text_lengths: Option<T>,
    extra: Option<T>,
    references: Vec<T>,
    positions: Option<T>,
}

/// The sizes of a call that has been checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Rows of the batch.
    pub(crate) b: usize,
    /// The image's tokens.
    pub(crate) image: Grid,
    /// Text tokens.
    pub(crate) text: usize,
}

impl Sizes {
    /// The first-block cache among `inputs` of the network named `network`.
    ///
    /// # Errors
    /// [`Error::Input`] for tensors that do not fit.
    pub(crate) fn cache<T: TensorLike>(
        self,
        network: &'static str,
        inputs: &Inputs<T>,
        dims: &FluxDims,
        timesteps: &T,
    ) -> Result<Option<BlockCache<T>>> {
        BlockCache::of(network, inputs, [self.b, self.image.tokens(), dims.channels()], timesteps)
    }
}

/// The error for an input of the network named `network`.
pub(crate) fn refused(network: &'static str, input: &'static str, expected: String, found: &[usize]) -> Error {
    Error::Input { network, input, expected, found: found.to_vec() }
}

impl<T: TensorLike> TokenInputs<T> {
    /// The inputs among `inputs` of the network named `network`.
    ///
    /// # Errors
    /// [`Error::Input`] without a text.
    pub(crate) fn of(network: &'static str, inputs: &Inputs<T>) -> Result<Self> {
        let context = inputs.get(CONTEXT).cloned();
        Ok(Self {
            context: context.ok_or_else(|| refused(network, CONTEXT.name, "(b, s, d)".into(), &[]))?,
            pooled: inputs.get(TEXT_EMBEDS).cloned(),
            guidance: inputs.get(GUIDANCE).cloned(),
            text_lengths: inputs.get(TEXT_LENGTHS).cloned(),
            extra: inputs.get(EXTRA_CHANNELS).cloned(),
            references: inputs.all(REFERENCE).cloned().collect(),
            positions: rotary::prepared(inputs),
        })
    }

    /// The inputs of the rows that `rows` takes of a tensor, without references and channels besides the latents.
    pub(crate) fn of_image(self, rows: impl Fn(&T) -> kiln_nn::Result<T>) -> kiln_nn::Result<Self> {
        Ok(Self {
            context: rows(&self.context)?,
            pooled: self.pooled.as_ref().map(&rows).transpose()?,
            text_lengths: self.text_lengths.as_ref().map(&rows).transpose()?,
            extra: None,
            references: Vec::new(),
            ..self
        })
    }

    /// Checks the inputs that all networks have, for latents `x`.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub(crate) fn check(&self, network: &'static str, dims: &FluxDims, x: &T, timesteps: &T) -> Result<Sizes> {
        let fail = |input, expected: String, found: &[usize]| Err(refused(network, input, expected, found));
        let c = dims.latent_channels();
        let [b, h, w] = match *x.dims() {
            [b, found, h, w] if found == c && b > 0 && is_divided(h, w) => [b, h, w],
            _ => return fail("x", format!("(b, {c}, h, w) with even h and w"), x.dims()),
        };
        if ![&[1][..], &[b]].contains(&timesteps.dims()) {
            return fail("timesteps", format!("(1) or ({b})"), timesteps.dims());
        }
        let text = match *self.context.dims() {
            [rows, s, d] if rows == b && s > 0 && d == dims.context_dim => s,
            _ => return fail(CONTEXT.name, format!("({b}, s, {})", dims.context_dim), self.context.dims()),
        };
        let extra = self.extra.as_ref().map(T::dims);
        match (dims.extra_channels(), extra) {
            (0, None) => {}
            (0, Some(found)) => return fail(EXTRA_CHANNELS.name, "none".into(), found),
            (e, found) if found == Some(&[b, e, h, w]) => {}
            (e, found) => return fail(EXTRA_CHANNELS.name, format!("({b}, {e}, {h}, {w})"), found.unwrap_or_default()),
        }
        for reference in &self.references {
            if extra.is_some() {
                return fail(REFERENCE.name, "none with channels besides the latents".into(), reference.dims());
            }
            match *reference.dims() {
                [rows, found, h, w] if (rows == b || rows == 1) && found == c && is_divided(h, w) => {}
                _ => {
                    let expected = format!("({b}, {c}, h, w) or (1, {c}, h, w) with even h and w");
                    return fail(REFERENCE.name, expected, reference.dims());
                }
            }
        }
        if let Some(lengths) = self.text_lengths.as_ref().filter(|lengths| lengths.dims() != [b]) {
            return fail(TEXT_LENGTHS.name, format!("({b})"), lengths.dims());
        }
        Ok(Sizes { b, image: Grid { index: 0, height: h / PATCH, width: w / PATCH }, text })
    }

    /// The tokens of the image and of all references, `(b, m, in_channels)`, for latents `x` that were checked.
    pub(crate) fn image_tokens(&self, x: &T) -> kiln_nn::Result<T> {
        let mut all = match &self.extra {
            Some(extra) => pack(&join_channels(x, &extra.to_dtype(x.dtype())?)?)?,
            None => pack(x)?,
        };
        for reference in &self.references {
            let packed = repeated(pack(&reference.to_dtype(x.dtype())?)?, x.size4()?[0])?;
            all = join_tokens(&all, &packed)?;
        }
        Ok(all)
    }

    /// The tokens of the image and of each reference.
    pub(crate) fn grids(&self, sizes: Sizes) -> kiln_nn::Result<Vec<Grid>> {
        let mut grids = vec![sizes.image];
        for (k, reference) in self.references.iter().enumerate() {
            let [_, _, h, w] = reference.size4()?;
            grids.push(Grid { index: 1 + k, height: h / PATCH, width: w / PATCH });
        }
        Ok(grids)
    }

    /// The attention of a call that was checked: positions of all tokens, and the keys of each row if text is masked. `like` is
    /// in f32.
    pub(crate) fn attending(&self, dims: &FluxDims, sizes: Sizes, like: &T) -> kiln_nn::Result<Attending<T>> {
        let grids = self.grids(sizes)?;
        let images: usize = grids.iter().map(|grid| grid.tokens()).sum();
        let lengths = self.text_lengths.as_ref().map(|text| text.affine(1.0, images as f64)).transpose()?;
        let tables = positions::tables(self.positions.as_ref(), dims, &grids, sizes.text, like)?;
        Ok(Attending { num_heads: dims.num_heads, tables, lengths })
    }
}

/// Whether a map has pixels, in whole squares.
fn is_divided(h: usize, w: usize) -> bool {
    h * w > 0 && h.is_multiple_of(PATCH) && w.is_multiple_of(PATCH)
}
