//! Counting the tokens of a prompt while it is typed, with the tokenizer of its model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_clip::{TokenEmbeddings, Tokenizer, chunks};
use kiln_models::ModelFolder;
use kiln_prompt::{COMMA_BACKTRACK, ChunkCut, PromptSchedule, expand, spans, subprompts, take_tags, without_comments};
use parking_lot::Mutex;

use crate::error::Result;

/// Steps of the schedules in prompts. Another number changes when a text applies, and hardly ever which texts there are.
const STEPS: usize = 20;
/// Models whose tokenizers are kept.
const MAX_OPEN: usize = 8;

/// The tokenizers of models that were asked for.
#[derive(Default)]
pub struct TokenCounter {
    open: Mutex<HashMap<PathBuf, Arc<Tokenizer>>>,
}

/// The length of a prompt. With several texts, by `AND` or schedules, it is that of the longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenCount {
    /// Tokens that the chunks hold up to the last one of the text. A chunk that a comma or `BREAK` ends early counts as full.
    pub tokens: usize,
    /// Tokens that those chunks have room for: 75 for each.
    pub room: usize,
}

impl TokenCounter {
    /// The tokenizer of a model.
    ///
    /// # Errors
    /// Errors of its files.
    fn tokenizer(&self, model: &ModelFolder) -> Result<Arc<Tokenizer>> {
        let path = model.path();
        if let Some(open) = self.open.lock().get(path) {
            return Ok(open.clone());
        }
        let tokenizer = Arc::new(model.files().tokenizer(0)?);
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(path.to_path_buf(), tokenizer.clone());
        Ok(tokenizer)
    }

    /// The lengths of a prompt and a negative prompt, with the rules that hold by default. A word with vectors of its own counts as its
    /// text.
    ///
    /// # Errors
    /// Errors of the model's files and of the tokenizer.
    pub fn count(&self, model: &ModelFolder, prompt: &str, negative: &str) -> Result<[TokenCount; 2]> {
        let tokenizer = self.tokenizer(model)?;
        let made = |text: &str| expand(&without_comments(text), 0, &|_| None);
        let prompt = subprompts(&take_tags(&made(prompt)).0);
        let parts = prompt.iter().map(|part| part.text.as_str());
        Ok([longest(&tokenizer, parts)?, longest(&tokenizer, [made(negative).as_str()].into_iter())?])
    }
}

/// The length of the longest text of the schedules of these.
fn longest<'a>(tokenizer: &Tokenizer, texts: impl Iterator<Item = &'a str>) -> Result<TokenCount> {
    let mut longest = TokenCount::default();
    for text in texts {
        for range in PromptSchedule::new(text, STEPS).ranges() {
            longest = longest.max(length(tokenizer, &range.text)?);
        }
    }
    Ok(longest)
}

fn length(tokenizer: &Tokenizer, text: &str) -> Result<TokenCount> {
    let words = TokenEmbeddings::default();
    let all = chunks(tokenizer, &spans(text), ChunkCut::Comma, COMMA_BACKTRACK, &words)?;
    let capacity = tokenizer.max_length().saturating_sub(2);
    let last = all.last().map_or(0, |chunk| chunk.spans.iter().flatten().count());
    Ok(TokenCount { tokens: all.len().saturating_sub(1) * capacity + last, room: all.len() * capacity })
}

#[cfg(test)]
mod tests {
    use kiln_clip::ClipPadding;

    use super::*;

    #[test]
    fn tokens_are_counted_in_chunks() {
        let tokenizer = Tokenizer::clip(ClipPadding::End).unwrap();
        let count = |text: &str| {
            let count = longest(&tokenizer, [text].into_iter()).unwrap();
            (count.tokens, count.room)
        };
        assert_eq!(count(""), (0, 75));
        assert_eq!(count("a red apple"), (3, 75));
        assert_eq!(count("a (red:1.3) apple"), (3, 75), "weights are no tokens");
        assert_eq!(count(&"apple ".repeat(75)), (75, 75));
        assert_eq!(count(&"apple ".repeat(76)), (76, 150));
        assert_eq!(count("a red apple BREAK a boat"), (77, 150), "a chunk that ends early counts as full");
        assert_eq!(count("a [boat:small sailing boat:0.5]"), (4, 75), "the longest text of a schedule");
    }
}
