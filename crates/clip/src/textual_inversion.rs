//! Embeddings of textual inversion (Gal et al., arXiv 2208.01618): words with their own vectors.
//!
//! A word is referred to by its name in a text, and takes as many token positions as it has vectors. Its ids follow the
//! vocabulary's, so that code that counts, cuts or weights tokens need not handle it separately. The encoder uses its
//! vectors instead of rows of the token table.

use std::ops::Range;

use candle_core::Tensor;
use kiln_nn::TensorLike;
use kiln_prompt::find_name;

use crate::error::{Error, Result};

/// The embeddings of words, for one text encoder.
#[derive(Debug, Clone, Default)]
pub struct TokenEmbeddings {
    names: Vec<(String, Range<u32>)>,
    /// The first id of the first word: the size of the encoder's vocabulary.
    first: u32,
    channels: usize,
    /// The vectors `(n, channels)` of all words in order, in f32 on the host.
    vectors: Option<Tensor>,
}

impl TokenEmbeddings {
    /// An empty set for an encoder with this vocabulary and width.
    pub(crate) fn new(vocab_size: usize, channels: usize) -> Self {
        Self { names: Vec::new(), first: vocab_size as u32, channels, vectors: None }
    }

    /// Adds a word with its vectors `(n, channels)`.
    ///
    /// # Errors
    /// [`Error::Vectors`] if they have the wrong width for this encoder.
    pub fn add(&mut self, name: impl Into<String>, vectors: &Tensor) -> Result<()> {
        let name = name.into();
        let n = match *vectors.dims() {
            [n, channels] if channels == self.channels && n > 0 && !name.is_empty() => n as u32,
            _ => {
                let (found, channels) = (vectors.dims().to_vec(), self.channels);
                return Err(Error::Vectors { word: name, found, channels });
            }
        };
        let all = match &self.vectors {
            None => vectors.clone(),
            Some(before) => Tensor::cat(&[before, vectors], 0).map_err(kiln_nn::Error::from)?,
        };
        let start = self.names.last().map_or(self.first, |(_, ids)| ids.end);
        self.names.push((name, start..start + n));
        self.vectors = Some(all);
        Ok(())
    }

    /// Whether there is no word.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether an id belongs to a word.
    pub(crate) fn contains(&self, id: u32) -> bool {
        id >= self.first && self.names.last().is_some_and(|(_, ids)| id < ids.end)
    }

    /// The number of a word's vectors from that of `id` on; 0 for the id of a token.
    pub(crate) fn vectors_from(&self, id: u32) -> usize {
        let word = self.names.iter().find(|(_, ids)| ids.contains(&id));
        word.map_or(0, |(_, ids)| (ids.end - id) as usize)
    }

    /// The first word in `text`, with its byte range and its ids. If several begin there, the longest.
    ///
    /// A match may not continue a run of letters or digits on either side. Case is ignored for ASCII letters, as in the
    /// tokenizer.
    pub(crate) fn find(&self, text: &str) -> Option<(Range<usize>, Range<u32>)> {
        let places = self.names.iter().filter_map(|(name, ids)| Some((find_name(text, name)?, ids.clone())));
        places.min_by_key(|(place, _)| (place.start, usize::MAX - place.end))
    }

    /// Replaces rows of `tokens` `(ids.len(), channels)` with the words' vectors.
    pub(crate) fn fill<T: TensorLike>(&self, tokens: T, ids: &[u32]) -> kiln_nn::Result<T> {
        let Some(vectors) = self.vectors.as_ref().filter(|_| ids.iter().any(|&id| self.contains(id))) else {
            return Ok(tokens);
        };
        let rows = ids.len() as u32;
        let row = |(i, &id): (usize, &u32)| if self.contains(id) { rows + (id - self.first) } else { i as u32 };
        let wanted: Vec<u32> = ids.iter().enumerate().map(row).collect();
        let vectors = tokens.new_constant(vectors)?;
        let all = T::cat(&[&tokens, &vectors], 0)?; // (ids.len() + n, channels)
        all.index_select(&wanted)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn words(names: &[(&str, usize)]) -> TokenEmbeddings {
        let mut words = TokenEmbeddings::new(100, 4);
        for &(name, n) in names {
            let vectors = Tensor::ones((n, 4), DType::F32, &Device::Cpu).unwrap();
            words.add(name, &vectors).unwrap();
        }
        words
    }

    #[test]
    fn the_first_and_longest_name_counts() {
        let words = words(&[("cat", 1), ("cat-toy", 3), ("<s1>", 2)]);
        assert_eq!(words.find("my cat-toy"), Some((3..10, 101..104)));
        assert_eq!(words.find("a <S1>, cat"), Some((2..6, 104..106)));
        assert_eq!(words.find("catalog, bobcat, cat2"), None);
        assert_eq!(words.find("ça cat"), Some((4..7, 100..101)));
        assert!(words.contains(105) && !words.contains(106) && !words.contains(99));
    }

    #[test]
    fn ids_determine_how_many_vectors_follow() {
        let words = words(&[("one", 1), ("three", 3)]);
        assert_eq!([99, 100, 101, 102, 103, 104].map(|id| words.vectors_from(id)), [0, 1, 3, 2, 1, 0]);
    }

    #[test]
    fn vectors_take_the_places_of_rows() {
        let mut words = words(&[("one", 1)]);
        words.add("two", &Tensor::new(&[[2f32, 2., 2., 2.], [3., 3., 3., 3.]], &Device::Cpu).unwrap()).unwrap();
        let tokens = Tensor::zeros((4, 4), DType::F16, &Device::Cpu).unwrap();
        let filled = words.fill(tokens, &[7, 101, 102, 100]).unwrap().to_dtype(DType::F32).unwrap();
        let column: Vec<f32> = filled.narrow(1, 0, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(column, [0.0, 2.0, 3.0, 1.0]);
    }

    #[test]
    fn vectors_of_another_width_are_refused() {
        let vectors = Tensor::ones((1, 5), DType::F32, &Device::Cpu).unwrap();
        let message = words(&[]).add("cat", &vectors).unwrap_err().to_string();
        assert!(message.contains("`cat` have shape [1, 5], expected (n, 4)"), "{message}");
    }
}
