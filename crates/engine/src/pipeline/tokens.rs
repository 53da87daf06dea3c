//! Texts as tokens: each text is tokenized once, for all that is made of it.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_clip::{Chunk, TextEncoder, TokenEmbeddings, Tokenizer, chunks};
use kiln_prompt::{ChunkCut, Emphasis, Span, spans};

use crate::error::Result;
use crate::pipeline::text_cache::Key;
use crate::words::Embeddings;

/// Texts that are remembered: those of the images that a set looks ahead at. One of a single chunk takes some KiB.
const REMEMBERED: usize = 4096;

/// One text as the encoders take it.
#[derive(Debug)]
pub(crate) struct TextTokens {
    /// For each encoder the text's chunks, as many for every encoder.
    chunks: Vec<Vec<Chunk>>,
    /// For each encoder the words with vectors of their own.
    words: Vec<TokenEmbeddings>,
    /// The chunks of the encoder that has the most before the others get empty ones.
    count: usize,
}

impl TextTokens {
    /// The number of chunks.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The weight of a token that differs most from 0; 1 without tokens.
    pub(crate) fn heaviest(&self) -> f32 {
        let weights = self.chunks.iter().flatten().flat_map(|chunk| &chunk.weights).copied();
        weights.fold(1.0, |heaviest, weight| if weight.abs() > heaviest.abs() { weight } else { heaviest })
    }

    /// The chunks for encoder `i`, and the words with vectors of their own.
    pub(crate) fn of_encoder(&self, i: usize) -> Option<(&[Chunk], &TokenEmbeddings)> {
        Some((self.chunks.get(i)?, self.words.get(i)?))
    }
}

/// The texts that were tokenized.
#[derive(Default)]
pub(crate) struct TokenizedTexts {
    known: HashMap<Key, Arc<TextTokens>>,
    /// How many texts were tokenized.
    count: usize,
}

impl TokenizedTexts {
    /// Forgets all texts: other words may have vectors of their own now.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// How many texts were tokenized so far.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A text's tokens, for encoders in their order, of which the first has place `first` among SDXL's two.
    ///
    /// # Errors
    /// Errors of the tokenizers and of files with embeddings.
    pub(crate) fn get(
        &mut self,
        key: &Key,
        embeddings: &Embeddings,
        first: usize,
        encoders: &[(&Tokenizer, &TextEncoder)],
    ) -> Result<Arc<TextTokens>> {
        if let Some(known) = self.known.get(key) {
            return Ok(known.clone());
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let tokens = Arc::new(tokenize(key, embeddings, first, encoders)?);
        self.count += 1;
        self.known.insert(key.clone(), tokens.clone());
        Ok(tokens)
    }
}

/// Cuts a text into chunks, with its brackets read as its emphasis says. TokenEmbeddings with vectors of their own are looked for in
/// the text between brackets: a name may have escaped brackets in it.
pub(crate) fn tokenize(
    key: &Key,
    embeddings: &Embeddings,
    first: usize,
    encoders: &[(&Tokenizer, &TextEncoder)],
) -> Result<TextTokens> {
    let spans = spans_of(key);
    let texts: Vec<&str> = spans.iter().map(|span| span.text.as_str()).collect();
    let networks: Vec<&TextEncoder> = encoders.iter().map(|(_, encoder)| *encoder).collect();
    let words = embeddings.named_in(&texts, first, &networks)?;
    let of_encoder = |((tokenizer, _), words): (&(&Tokenizer, &TextEncoder), &TokenEmbeddings)| -> Result<Vec<Chunk>> {
        Ok(chunks(tokenizer, &spans, key.chunk_cut, key.comma_backtrack, words)?)
    };
    let mut all = encoders.iter().zip(&words).map(of_encoder).collect::<Result<Vec<_>>>()?;
    // Tokenizers may disagree about a text, but its chunks must not.
    let count = all.iter().map(Vec::len).max().unwrap_or(1);
    for (own, (tokenizer, _)) in all.iter_mut().zip(encoders) {
        let empty = chunks(tokenizer, &[], ChunkCut::Comma, 0, &TokenEmbeddings::default())?;
        let missing = count - own.len();
        own.extend(empty.iter().cycle().take(missing).cloned());
    }
    Ok(TextTokens { chunks: all, words, count })
}

/// A text's spans, of which there is one where its emphasis says that brackets are text.
fn spans_of(key: &Key) -> Vec<Span> {
    match key.emphasis {
        Emphasis::None => vec![Span::plain(&*key.text)],
        _ => spans(&key.text),
    }
}
