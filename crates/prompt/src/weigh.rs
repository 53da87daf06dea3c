//! Emphasis: `(a)`, `(a:1.3)`, `[a]`, escapes, and `BREAK`.

use crate::number::signed_digits_and_dots;
use crate::{find_word, is_space};

/// The factor of a pair of parentheses; square brackets divide by it.
const STEP: f64 = 1.1;
/// The maximum number of nested brackets of a kind that count, of the innermost and outermost ones. 1.1 to that power
/// is 4e10, which destroys any image. It bounds the time to parse a text of brackets.
const MAX_DEPTH: usize = 256;
const BREAK: &str = "BREAK";

/// A piece of a prompt whose tokens have one weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The text, without brackets and escapes.
    pub text: String,
    /// Its weight: 1 outside brackets.
    pub weight: f64,
}

impl Span {
    /// A span outside brackets.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), weight: 1.0 }
    }

    /// Whether this span marks the end of a chunk instead of text. As in AUTOMATIC1111 its weight is the marker, so
    /// that a `BREAK` inside brackets, which change the weight, is text.
    pub fn is_break(&self) -> bool {
        self.text == BREAK && self.weight == -1.0
    }
}

/// Texts with their weights, at least one. Adjacent texts of the same weight are joined.
pub fn spans(prompt: &str) -> Vec<Span> {
    let mut reader = Reader::default();
    let mut rest = prompt;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\\' => reader.escape(&rest[1..]),
            '(' => reader.open(Bracket::Round),
            '[' => reader.open(Bracket::Square),
            ')' => reader.close(Bracket::Round, STEP, ")"),
            ']' => reader.close(Bracket::Square, 1.0 / STEP, "]"),
            ':' => reader.colon(rest),
            _ => {
                let end = rest.find(['\\', '(', ')', '[', ']', ':']).unwrap_or(rest.len());
                reader.push(&rest[..end])
            }
        };
        rest = &rest[length..];
    }
    reader.finish()
}

#[derive(Clone, Copy)]
enum Bracket {
    Round,
    Square,
}

#[derive(Default)]
struct Reader {
    spans: Vec<Span>,
    /// For each open bracket of a kind, the first span after it.
    open: [Vec<usize>; 2],
}

/// Each method consumes a token and returns its length in bytes.
impl Reader {
    /// A backslash before a bracket or a backslash makes it text. Any other backslash is removed.
    fn escape(&mut self, rest: &str) -> usize {
        let length = usize::from(rest.starts_with(['(', ')', '[', ']', '\\']));
        self.spans.push(Span::plain(&rest[..length]));
        1 + length
    }

    fn open(&mut self, bracket: Bracket) -> usize {
        self.open[bracket as usize].push(self.spans.len());
        1
    }

    /// Multiplies the spans since its opening bracket by `factor`. Without an opening bracket, `token` is text.
    fn close(&mut self, bracket: Bracket, factor: f64, token: &str) -> usize {
        match self.open[bracket as usize].pop() {
            Some(start) if self.open[bracket as usize].len() < MAX_DEPTH => self.multiply(start, factor),
            Some(_) => {}
            None => _ = self.push(token),
        }
        token.len()
    }

    /// `:1.3)` closes a bracket with that weight; any other colon is text.
    fn colon(&mut self, rest: &str) -> usize {
        let number = rest[1..].trim_start_matches(is_space);
        let weight = signed_digits_and_dots(number).and_then(|length| {
            let behind = number[length..].trim_start_matches(is_space).strip_prefix(')')?;
            let weight: f64 = number[..length].parse().ok()?; // `1.2.3` is an error in AUTOMATIC1111; here it is text
            Some((weight, &rest[..rest.len() - behind.len()]))
        });
        match weight {
            Some((weight, token)) => self.close(Bracket::Round, weight, token),
            None => self.push(":"),
        }
    }

    /// Adds text, in which `BREAK` may occur as a separate word.
    fn push(&mut self, text: &str) -> usize {
        let mut start = 0;
        while let Some(at) = find_word(text, BREAK, start) {
            self.spans.push(Span::plain(text[start..at].trim_end_matches(is_space)));
            self.spans.push(Span { text: BREAK.into(), weight: -1.0 });
            let rest = &text[at + BREAK.len()..];
            start = text.len() - rest.trim_start_matches(is_space).len();
        }
        self.spans.push(Span::plain(&text[start..]));
        text.len()
    }

    fn multiply(&mut self, start: usize, factor: f64) {
        self.spans[start..].iter_mut().for_each(|span| span.weight *= factor);
    }

    fn finish(mut self) -> Vec<Span> {
        for (bracket, factor) in [(Bracket::Round, STEP), (Bracket::Square, 1.0 / STEP)] {
            for start in std::mem::take(&mut self.open[bracket as usize]).into_iter().take(MAX_DEPTH) {
                self.multiply(start, factor);
            }
        }
        let mut joined: Vec<Span> = Vec::new();
        for span in self.spans {
            match joined.last_mut() {
                Some(last) if last.weight == span.weight => last.text += &span.text,
                _ => joined.push(span),
            }
        }
        if joined.is_empty() { vec![Span::plain("")] } else { joined }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prompt: &str, expected: &[(&str, f64)]) {
        let found = spans(prompt);
        let found: Vec<(&str, f64)> = found.iter().map(|span| (&*span.text, span.weight)).collect();
        assert_eq!(found, expected, "{prompt}");
    }

    /// The examples in AUTOMATIC1111's documentation of the function, bit for bit.
    #[test]
    fn brackets_weigh() {
        check("normal text", &[("normal text", 1.0)]);
        check("an (important) word", &[("an ", 1.0), ("important", 1.1), (" word", 1.0)]);
        check("(unbalanced", &[("unbalanced", 1.1)]);
        check(r"\(literal\]", &[("(literal]", 1.0)]);
        check("(unnecessary)(parens)", &[("unnecessaryparens", 1.1)]);
        check(
            "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
            &[
                ("a ", 1.0),
                ("house", 1.5730000000000004),
                (" ", 1.1),
                ("on", 1.0),
                (" a ", 1.1),
                ("hill", 0.55),
                (", sun, ", 1.1),
                ("sky", 1.4641000000000006),
                (".", 1.1),
            ],
        );
    }

    #[test]
    fn malformed_texts_are_parsed() {
        check("", &[("", 1.0)]);
        check("a) b] :1.2)", &[("a) b] :1.2)", 1.0)]);
        check("(a: +.5 )b", &[("a", 0.5), ("b", 1.0)]);
        check("(a:1.2.3)", &[("a:1.2.3", 1.1)]);
        check("(a:b)", &[("a:b", 1.1)]);
        check(r"a\b\", &[("ab", 1.0)]);
        check("([a)]", &[("a", 1.1 * (1.0 / 1.1))]);
    }

    #[test]
    fn break_is_a_word_of_its_own() {
        check("a BREAK b", &[("a", 1.0), ("BREAK", -1.0), ("b", 1.0)]);
        check("BREAKER aBREAK", &[("BREAKER aBREAK", 1.0)]);
        assert_eq!(spans("a BREAK BREAK,b").iter().filter(|span| span.is_break()).count(), 2);
        assert!(!spans("(a BREAK b)").iter().any(Span::is_break));
    }

    #[test]
    fn deep_nesting_takes_bounded_time() {
        for text in ["(", "(a", "a)", "[a", "(a:", "(a[b", ":1)", "BREAK "] {
            spans(&text.repeat(100_000));
        }
        spans(&format!("{}{}", "(a".repeat(100_000), ")".repeat(100_000)));
    }
}
