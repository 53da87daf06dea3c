//! AUTOMATIC1111's prompt dialect, from text to text. It depends on no tokenizer and on no tensor.
//!
//! The steps in which a prompt is parsed, one file each:
//!
//! 0. [`without_comments`]: removes `# ..` to the end of the line from the text;
//! 1. [`expand`]: `{a|b}` and `__name__` become one of their choices, by the image's seed;
//! 2. [`take_tags`]: removes `<lora:name:0.8>` from the text;
//! 3. [`subprompts`]: `AND` parts, each with its weight (a negative prompt has none);
//! 4. [`PromptSchedule`]: `[from:to:when]` and `[a|b]` become one text for each range of steps;
//! 5. [`spans`]: `(a:1.3)`, `[a]`, escapes and `BREAK` become texts with weights.
//!
//! A text encoder then cuts the spans into tokens as [`TextOptions`] say, and applies their weights by an [`Emphasis`].
//!
//! No text is an error. Malformed texts have the same meaning as in AUTOMATIC1111's parser (version 1.10), which
//! `tests/dialect.rs` checks. The time is bounded by the text's length, for any brackets.
//!
//! ```
//! use kiln_prompt::{PromptSchedule, spans, subprompts};
//!
//! let parts = subprompts("a (red:1.3) [fox:wolf:0.5] AND snow :0.4");
//! assert_eq!((parts[0].weight, parts[1].weight), (1.0, 0.4));
//! let schedule = PromptSchedule::new(&parts[0].text, 20);
//! assert_eq!(schedule.ranges()[0].until, 10);
//! assert_eq!(spans(&schedule.ranges()[0].text)[1].weight, 1.3);
//! ```
#![forbid(unsafe_code)]

mod choices;
mod chunk_cut;
mod comments;
pub mod emphasis;
mod mentions;
mod number;
mod options;
mod schedule;
mod subprompt;
mod tags;
mod weigh;

pub use choices::expand;
pub use chunk_cut::{COMMA_BACKTRACK, ChunkCut};
pub use comments::without_comments;
pub use emphasis::Emphasis;
pub use mentions::{find_name, mentions};
pub use options::TextOptions;
pub use schedule::{PromptSchedule, StepRange};
pub use subprompt::{Subprompt, subprompts};
pub use tags::{Tag, take_tags};
pub use weigh::{Span, spans};

/// Whether a regular expression of Python treats `c` as a space: Unicode's spaces, and four separators that are control
/// characters.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether a regular expression of Python treats `c` as part of a word.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The position of `word` in `text`, from byte `from` on, with no part of a word on either side.
fn find_word(text: &str, word: &str, from: usize) -> Option<usize> {
    let alone = |at: &usize| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    text[from..].match_indices(word).map(|(at, _)| from + at).find(alone)
}
