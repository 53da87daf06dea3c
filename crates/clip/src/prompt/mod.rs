//! AUTOMATIC1111's prompt dialect, from text to text: nothing here knows tokens or tensors but [`chunks`].
//!
//! The order in which a prompt is read, one file each:
//!
//! 0. [`without_comments`]: `# ..` to the end of the line leaves the text;
//! 1. [`expand`]: `{a|b}` and `__name__` become one of their choices, by the picture's seed;
//! 2. [`take_tags`]: `<lora:name:0.8>` leaves the text;
//! 3. [`subprompts`]: `AND` parts, each with its weight (a negative prompt has none);
//! 4. [`PromptSchedule`]: `[from:to:when]` and `[a|b]` become one text for each stretch of steps;
//! 5. [`spans`]: `(a:1.3)`, `[a]`, escapes and `BREAK` become texts with weights;
//! 6. [`chunks`]: the spans' tokens in chunks of 75, cut behind commas where one is near.
//!
//! No text is an error. What AUTOMATIC1111's parser (version 1.10) makes of a malformed one, these make of it too; it is
//! compared with theirs in `tests/prompts.rs`. The time is bounded by the text's length, whatever its brackets are.

mod choices;
mod chunk;
mod comments;
mod number;
mod schedule;
mod subprompt;
mod tags;
mod weigh;

pub use choices::expand;
pub use chunk::{COMMA_BACKTRACK, Chunk, ChunkCut, chunks};
pub use comments::without_comments;
pub use schedule::{PromptSchedule, Stretch};
pub use subprompt::{Subprompt, subprompts};
pub use tags::{Tag, take_tags};
pub use weigh::{Span, spans};

/// What a regular expression of Python calls a space: Unicode's, and four separators that are control characters.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// What it calls a part of a word.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands in `text` with no part of a word at either side, from byte `from` on.
fn find_word(text: &str, word: &str, from: usize) -> Option<usize> {
    let alone = |at: &usize| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    text[from..].match_indices(word).map(|(at, _)| from + at).find(alone)
}
