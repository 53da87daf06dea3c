//! Cuts spans into chunks of tokens, at the same places as AUTOMATIC1111.

use kiln_prompt::{ChunkCut, Span};

use crate::error::Result;
use crate::textual_inversion::TokenEmbeddings;
use crate::tokenizer::Tokenizer;

/// A word of at least this many tokens is split at the end of a chunk: ComfyUI's `max_word_length`
/// (`comfy/sd1_clip.py`).
const LONG_WORD: usize = 8;

/// Tokens that are encoded together, with their weights. All three have the tokenizer's length of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// A begin token, the text's, an end token, padding.
    pub ids: Vec<u32>,
    /// The weight of each token; begin, end and padding have weight 1.
    pub weights: Vec<f32>,
    /// The index of each token's span in the prompt; begin, end and padding have none.
    pub spans: Vec<Option<usize>>,
}

/// The chunks of a prompt, at least one. With [`ChunkCut::Comma`] a full chunk is cut after its last comma if that is
/// at most `backtrack` tokens back, so that phrases stay together. With 0 it is cut where it is full. `BREAK` ends a
/// chunk. With [`ChunkCut::Word`], words are separated by spaces and belong to one span, and `backtrack` is ignored.
/// With [`ChunkCut::Truncate`] there is one chunk of the first tokens, and `BREAK` is left out.
/// One of `words` counts as many tokens as it has vectors, and is never split; vectors that do not fit into a chunk are
/// omitted.
///
/// # Errors
/// [`crate::Error::Tokenize`] if the `tokenizers` crate fails.
pub fn chunks(
    tokenizer: &Tokenizer,
    spans: &[Span],
    cut: ChunkCut,
    backtrack: usize,
    words: &TokenEmbeddings,
) -> Result<Vec<Chunk>> {
    let mut builder = Builder { tokenizer, backtrack, chunks: Vec::new(), open: Vec::new(), last_comma: None };
    for (span, Span { text, weight }) in spans.iter().enumerate() {
        match (spans[span].is_break(), cut) {
            (true, ChunkCut::Truncate) => continue,
            (true, _) => {
                builder.end_chunk();
                continue;
            }
            (false, ChunkCut::Truncate) => {
                builder.push_fitting(&tokenizer.encode_with(text, words)?, *weight as f32, span);
                continue;
            }
            (false, ChunkCut::Comma | ChunkCut::Word) => {}
        }
        if cut == ChunkCut::Word {
            for word in text.split([' ', '\n']).filter(|word| !word.is_empty()) {
                builder.push_word(&tokenizer.encode_with(word, words)?, *weight as f32, span);
            }
            continue;
        }
        let ids = tokenizer.encode_with(text, words)?;
        let mut rest = &ids[..];
        while let Some(&id) = rest.first() {
            builder.make_room(id);
            let (whole, behind) = rest.split_at(words.vectors_from(id).clamp(1, rest.len()));
            if builder.open.len() + whole.len() > builder.capacity() {
                builder.end_chunk();
            }
            let fitting = whole.iter().take(builder.capacity());
            builder.open.extend(fitting.map(|&id| (id, *weight as f32, span)));
            rest = behind;
        }
    }
    if !builder.open.is_empty() || builder.chunks.is_empty() {
        builder.end_chunk();
    }
    Ok(builder.chunks)
}

struct Builder<'a> {
    tokenizer: &'a Tokenizer,
    backtrack: usize,
    chunks: Vec<Chunk>,
    /// Id, weight and span of the tokens of the current chunk.
    open: Vec<(u32, f32, usize)>,
    /// The position after its last comma.
    last_comma: Option<usize>,
}

impl Builder<'_> {
    /// The number of text tokens that fit into a chunk.
    fn capacity(&self) -> usize {
        self.tokenizer.max_length() - 2
    }

    /// Ends the chunk if it is full, after its last comma if that is near. A comma itself is never moved.
    fn make_room(&mut self, id: u32) {
        let full = self.open.len() == self.capacity();
        if self.tokenizer.comma() == Some(id) {
            self.last_comma = Some(self.open.len());
        } else if let Some(comma) = self.last_comma.filter(|comma| full && self.open.len() - comma <= self.backtrack) {
            let moved = self.open.split_off(comma + 1);
            self.end_chunk();
            self.open = moved;
        }
        if self.open.len() == self.capacity() {
            self.end_chunk();
        }
    }

    /// Adds the tokens of a word. It begins a new chunk if it does not fit and is not long.
    fn push_word(&mut self, mut ids: &[u32], weight: f32, span: usize) {
        let is_long = ids.len() >= LONG_WORD;
        while !ids.is_empty() {
            let room = self.capacity().saturating_sub(self.open.len());
            let fits = ids.len() <= room;
            // A word that is longer than a chunk is treated as long, so that the loop ends.
            let taken = if fits {
                ids.len()
            } else if is_long {
                room
            } else {
                0
            };
            let (now, later) = ids.split_at(taken);
            self.open.extend(now.iter().map(|&id| (id, weight, span)));
            if !fits {
                self.end_chunk();
            }
            ids = later;
        }
    }

    /// Adds those of the first tokens that the chunk has room for.
    fn push_fitting(&mut self, ids: &[u32], weight: f32, span: usize) {
        let room = self.capacity().saturating_sub(self.open.len());
        self.open.extend(ids.iter().take(room).map(|&id| (id, weight, span)));
    }

    fn end_chunk(&mut self) {
        let tokens = std::mem::take(&mut self.open);
        self.last_comma = None;
        let ids: Vec<u32> = tokens.iter().map(|&(id, ..)| id).collect();
        let length = self.tokenizer.max_length();
        let mut chunk =
            Chunk { ids: self.tokenizer.frame(&ids), weights: vec![1.0; length], spans: vec![None; length] };
        for (i, (_, weight, span)) in tokens.into_iter().enumerate() {
            (chunk.weights[i + 1], chunk.spans[i + 1]) = (weight, Some(span));
        }
        self.chunks.push(chunk);
    }
}
