//! compel's syntax in InvokeAI's prompts: `word++`, `word-`, `(some words)1.3`, `(some words)++`.
//!
//! Each `+` is a factor of 1.1, each `-` one of 0.9; parentheses without a factor have no effect, and factors of nested
//! parentheses are multiplied (compel's documentation, `Syntax.md`).

const PLUS: f64 = 1.1;
const MINUS: f64 = 0.9;
/// Deeper parentheses are text.
const MAX_DEPTH: usize = 64;

/// The spans of a prompt.
///
/// # Errors
/// Names a function such as `.blend()`, which combines several prompts.
pub(super) fn spans(prompt: &str) -> Result<Vec<(String, f64)>, String> {
    for function in [".and(", ".blend(", ".swap("] {
        if prompt.contains(function) {
            return Err(format!("its prompt has compel's {function}..), which Kiln does not support"));
        }
    }
    let chars: Vec<char> = prompt.chars().collect();
    let mut spans = Vec::new();
    read(&chars, 1.0, 0, &mut spans);
    Ok(spans)
}

/// Adds the spans of `text` with the base weight `weight`.
fn read(text: &[char], weight: f64, depth: usize, spans: &mut Vec<(String, f64)>) {
    let mut open = String::new(); // text with this weight
    let mut i = 0;
    while let Some(&c) = text.get(i) {
        match c {
            '\\' => {
                open.extend(text.get(i + 1));
                i += 2;
            }
            '(' if depth < MAX_DEPTH => match closing(text, i) {
                Some(end) => {
                    let (factor, behind) = factor(text, end + 1);
                    push(spans, &mut open, weight);
                    read(text.get(i + 1..end).unwrap_or_default(), weight * factor, depth + 1, spans);
                    i = behind;
                }
                None => {
                    open.push(c);
                    i += 1;
                }
            },
            '+' | '-' => {
                let signs = text[i..].iter().take_while(|&&sign| sign == c).count();
                let next = text.get(i + signs);
                let ends_a_word = next.is_none_or(|next| !next.is_alphanumeric() && !['+', '-'].contains(next));
                let start = open.rfind(char::is_whitespace).map_or(0, |at| at + 1);
                // A sign that stands alone or within a word is text.
                if ends_a_word && open.get(start..).is_some_and(|word| word.chars().any(char::is_alphanumeric)) {
                    let mut word = open.split_off(start);
                    push(spans, &mut open, weight);
                    push(spans, &mut word, weight * power(c, signs));
                } else {
                    open.extend(std::iter::repeat_n(c, signs));
                }
                i += signs;
            }
            c => {
                open.push(c);
                i += 1;
            }
        }
    }
    push(spans, &mut open, weight);
}

fn push(spans: &mut Vec<(String, f64)>, open: &mut String, weight: f64) {
    let text = std::mem::take(open);
    if !text.trim().is_empty() {
        spans.push((text, weight));
    }
}

fn power(sign: char, times: usize) -> f64 {
    let factor = if sign == '+' { PLUS } else { MINUS };
    factor.powi(times.min(100) as i32)
}

/// The position that closes the parenthesis at `start`.
fn closing(text: &[char], start: usize) -> Option<usize> {
    let (mut depth, mut i) = (0usize, start);
    loop {
        match text.get(i)? {
            '\\' => i += 1,
            '(' => depth += 1,
            ')' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
        i += 1;
    }
}

/// The factor at `start` after a parenthesis, and the position after it.
fn factor(text: &[char], start: usize) -> (f64, usize) {
    let rest = text.get(start..).unwrap_or_default();
    match rest.first() {
        Some(&sign @ ('+' | '-')) => {
            let signs = rest.iter().take_while(|&&c| c == sign).count();
            (power(sign, signs), start + signs)
        }
        _ => {
            let number: String = rest.iter().take(20).take_while(|c| c.is_ascii_digit() || **c == '.').collect();
            // The period of a sentence is not part of the number.
            let number = number.trim_end_matches('.');
            number.parse().map_or((1.0, start), |factor| (factor, start + number.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prompt: &str, expected: &[(&str, f64)]) {
        let found = spans(prompt).unwrap();
        let found: Vec<(&str, f64)> = found.iter().map(|(text, weight)| (text.trim(), *weight)).collect();
        let close = found.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-12);
        assert!(close && found.len() == expected.len(), "{prompt}: {found:?}");
    }

    /// Examples from compel's documentation of its syntax, and from a real prompt.
    #[test]
    fn words_and_parentheses_have_weights() {
        check(
            "a man picking apricots++ from a tree--",
            &[("a man picking", 1.0), ("apricots", 1.21), ("from a", 1.0), ("tree", 0.81)],
        );
        check(
            "a (man picking (apricots)1.3)1.1 from a tree",
            &[("a", 1.0), ("man picking", 1.1), ("apricots", 1.1 * 1.3), ("from a tree", 1.0)],
        );
        check(
            "grainy+, photo, jpg+, noisy++, black-and-white - a",
            &[
                ("grainy", 1.1),
                (", photo,", 1.0),
                ("jpg", 1.1),
                (",", 1.0),
                ("noisy", 1.21),
                (", black-and-white - a", 1.0),
            ],
        );
        check(
            "(imperfect skin), (a b)-. (c)1.5.",
            &[("imperfect skin", 1.0), (",", 1.0), ("a b", 0.9), (".", 1.0), ("c", 1.5), (".", 1.0)],
        );
        check(r"a \(b\) (c", &[("a (b) (c", 1.0)]);
        assert!(spans("(\"a\", \"b\").blend(1, 2)").unwrap_err().contains(".blend("));
    }

    #[test]
    fn deep_nesting_takes_bounded_time() {
        for text in ["(", "(a)", "+", "a+", "((a)", ")"] {
            spans(&text.repeat(3_000)).unwrap();
        }
    }
}
