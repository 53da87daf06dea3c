//! Texts as chunks of tokens, the same number for every encoder.

use candle_core::Tensor;
use kiln_network::text::{Error, PromptText, Result, Tokens, Word, Words};
use kiln_prompt::{ChunkCut, Emphasis, Span, spans};

use super::ClipEncoder;
use crate::chunk::{Chunk, chunks};
use crate::textual_inversion::TokenEmbeddings;

/// One text as the encoders take it.
pub(super) struct ClipTokens {
    /// The text's chunks for each encoder, as many for every encoder.
    chunks: Vec<Vec<Chunk>>,
    /// The words with vectors of their own for each encoder.
    words: Vec<TokenEmbeddings>,
}

impl ClipTokens {
    /// The chunks for encoder `i`, and the words with vectors of their own.
    pub(super) fn of_encoder(&self, i: usize) -> Option<(&[Chunk], &TokenEmbeddings)> {
        Some((self.chunks.get(i)?, self.words.get(i)?))
    }
}

/// Cuts a text into chunks of `chunk` tokens. Words with vectors of their own are looked for in the text between brackets: a
/// name may have escaped brackets in it.
pub(super) fn tokenize(
    encoders: &[ClipEncoder],
    chunk: usize,
    text: &PromptText,
    available: &dyn Words,
) -> Result<Tokens> {
    let options = &text.options;
    let spans = match options.emphasis {
        Emphasis::None => vec![Span::plain(&*text.text)],
        _ => spans(&text.text),
    };
    let texts: Vec<&str> = spans.iter().map(|span| span.text.as_str()).collect();
    let mut words: Vec<TokenEmbeddings> = encoders.iter().map(|own| own.encoder.token_embeddings()).collect();
    for word in available.named_in(&texts) {
        add(&mut words, encoders, &word)?;
    }
    let (mut all, mut used) = (Vec::with_capacity(encoders.len()), Vec::with_capacity(encoders.len()));
    for (own, words) in encoders.iter().zip(&words) {
        let tokenizer = own.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
        let own = chunks(tokenizer, &spans, options.chunk_cut, options.comma_backtrack, words)?;
        used.push(own.last().map_or(0, |chunk| chunk.spans.iter().flatten().count()));
        all.push(own);
    }
    // Tokenizers may disagree about a text, but its chunks must not.
    let count = all.iter().map(Vec::len).max().unwrap_or(1);
    let last = all.iter().zip(used).find(|(own, _)| own.len() == count).map_or(0, |(_, used)| used);
    for (own, ClipEncoder { tokenizer, .. }) in all.iter_mut().zip(encoders) {
        let tokenizer = tokenizer.as_ref().ok_or_else(no_tokenizer)?;
        let empty = chunks(tokenizer, &[], ChunkCut::Comma, 0, &TokenEmbeddings::default())?;
        let missing = count - own.len();
        own.extend(empty.iter().cycle().take(missing).cloned());
    }
    let weights = all.iter().flatten().flat_map(|chunk| &chunk.weights).copied();
    let heaviest =
        weights.fold(1.0, |heaviest: f32, weight| if weight.abs() > heaviest.abs() { weight } else { heaviest });
    let room = chunk.saturating_sub(2).max(1);
    let tokens = Tokens::new(count * chunk, ClipTokens { chunks: all, words }).with_heaviest(heaviest);
    Ok(tokens.with_room((count - 1) * room + last, count * room))
}

fn no_tokenizer() -> Error {
    crate::Error::Tokenize("the text encoder was opened without its tokenizer".into()).into()
}

/// A chunk of ids that count up from `number`, without weights.
pub(super) fn sample(encoders: &[ClipEncoder], chunk: usize, number: usize) -> Tokens {
    let of = |own: &ClipEncoder| {
        let config = own.encoder.config();
        let length = chunk.min(config.max_position_embeddings);
        let ids = (0..length).map(|i| ((i + number) % config.vocab_size.max(1)) as u32).collect();
        vec![Chunk { ids, weights: vec![1.0; length], spans: vec![None; length] }]
    };
    let words = encoders.iter().map(|_| TokenEmbeddings::default()).collect();
    Tokens::new(chunk, ClipTokens { chunks: encoders.iter().map(of).collect(), words })
}

/// Adds a word for all encoders, or logs why it stays text: every encoder needs vectors, and of the same number, or they would
/// not see the same text in the same places.
fn add(words: &mut [TokenEmbeddings], encoders: &[ClipEncoder], word: &Word<'_>) -> Result<()> {
    let of = |own: &ClipEncoder| own.network.map_or(Ok(None), |network| (word.vectors)(network));
    let vectors = encoders.iter().map(of).collect::<kiln_weights::Result<Vec<Option<Tensor>>>>()?;
    let fits = |(vectors, own): (&Option<Tensor>, &ClipEncoder)| {
        vectors.as_ref().is_some_and(|vectors| vectors.dims().last() == Some(&own.encoder.config().hidden_size))
    };
    let count = |vectors: &Option<Tensor>| vectors.as_ref().map(|vectors| vectors.dims().first().copied());
    let same = vectors.windows(2).all(|pair| count(&pair[0]) == count(&pair[1]));
    let Word { name, origin, .. } = word;
    if !same || !vectors.iter().zip(encoders).all(fits) {
        tracing::warn!("`{name}` stays text: the vectors in {origin} are not for this model's text encoders");
        return Ok(());
    }
    for (words, vectors) in words.iter_mut().zip(vectors.iter().flatten()) {
        words.add(*name, vectors)?;
    }
    Ok(())
}
