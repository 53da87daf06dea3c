//! Words of textual inversion, as a stage takes them.

use candle_core::Tensor;
use kiln_weights::Network;

/// A word with vectors of its own.
pub struct Word<'a> {
    /// The word.
    pub name: &'a str,
    /// The file that it comes from, for messages.
    pub origin: String,
    /// Reads its vectors for a text encoder, `(n, d)` in f32; `None` if it has none for that encoder.
    pub vectors: Box<dyn Fn(Network) -> kiln_weights::Result<Option<Tensor>> + 'a>,
}

/// The available words of textual inversion.
pub trait Words {
    /// The words that any of `texts` contains, in the order of their files.
    fn named_in<'a>(&'a self, texts: &[&str]) -> Vec<Word<'a>>;
}

/// No words.
pub struct NoWords;

impl Words for NoWords {
    fn named_in<'a>(&'a self, _texts: &[&str]) -> Vec<Word<'a>> {
        Vec::new()
    }
}
