//! The tokens of image and text between two blocks: first apart, then joined.

use kiln_nn::{Result, TensorLike};

use crate::block_cache::Rows;
use crate::tokens::{join_tokens, tokens};

/// The tokens of image and text.
pub(crate) struct Streams<T> {
    /// Tokens of the image, then of references, then of the text if they are joined.
    first: T,
    /// Text tokens, if they are apart.
    text: Option<T>,
    /// The number of the image's tokens, which are the first ones.
    n: usize,
}

impl<T: TensorLike> Streams<T> {
    /// Tokens `x` `(b, m, c)`, of which the first `n` are those of the image, and text tokens `y` `(b, s, c)`.
    pub(crate) fn new(x: T, y: T, n: usize) -> Self {
        Self { first: x, text: Some(y), n }
    }

    /// All tokens `z` `(b, m + s, c)`, of which the first `n` are those of the image.
    pub(crate) fn of_all(z: T, n: usize) -> Self {
        Self { first: z, text: None, n }
    }

    /// Tokens of images and of the text.
    ///
    /// # Errors
    /// [`kiln_nn::Error`] if they were joined before: blocks with weights for both come after those with weights of their own.
    pub(crate) fn apart(self) -> Result<[T; 2]> {
        match self.text {
            Some(text) => Ok([self.first, text]),
            None => {
                let (expected, found) = ("tokens that are not joined yet".into(), self.first.dims().to_vec());
                Err(kiln_nn::ops::Error::Shape { op: "block", operand: "tokens", expected, found }.into())
            }
        }
    }

    /// All tokens.
    pub(crate) fn joined(self) -> Result<T> {
        match self.text {
            Some(text) => join_tokens(&self.first, &text),
            None => Ok(self.first),
        }
    }

    /// The image's tokens `(b, n, c)`.
    pub(crate) fn image(&self) -> Result<T> {
        tokens(&self.first, 0, self.n)
    }

    /// The number of the image's tokens.
    pub(crate) fn image_tokens(&self) -> usize {
        self.n
    }

    /// The tokens of some rows of the batch.
    pub(crate) fn pick(self, rows: &Rows) -> Result<Self> {
        let text = self.text.as_ref().map(|text| rows.of(text)).transpose()?;
        Ok(Self { first: rows.of(&self.first)?, text, n: self.n })
    }
}
