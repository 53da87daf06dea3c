//! Texts of prompts: ComfyUI's parentheses and names of embeddings.

use crate::settings::formats::stem;

/// Deeper parentheses are text.
const MAX_DEPTH: usize = 64;
/// The factor of a pair of parentheses.
const STEP: f64 = 1.1;

/// The spans of a text with ComfyUI's parentheses (`comfy/sd1_clip.py`, `token_weights`): `(a)` has 1.1 times the
/// weight, `(a:1.3)` has 1.3 regardless of its context, `\(` and `\)` are text, and so is an unbalanced parenthesis. A
/// word `embedding:name` names an embedding.
pub(crate) fn spans(text: &str) -> Vec<(String, f64)> {
    // As in ComfyUI: escaped parentheses are replaced by characters that no text has.
    let text = text.replace("\\)", "\0\u{1}").replace("\\(", "\0\u{2}");
    let mut spans = Vec::new();
    weigh(&text, 1.0, 0, &mut spans);
    let unescaped = |text: &str| text.replace("\0\u{1}", ")").replace("\0\u{2}", "(");
    spans.into_iter().map(|(text, weight)| (with_names(&unescaped(text)), weight)).collect()
}

fn weigh<'t>(text: &'t str, weight: f64, depth: usize, spans: &mut Vec<(&'t str, f64)>) {
    let (mut start, mut nesting) = (0, 0i64);
    let push = |piece: &'t str, spans: &mut Vec<(&'t str, f64)>| {
        let inner = piece.strip_prefix('(').and_then(|piece| piece.strip_suffix(')'));
        match inner.filter(|_| depth < MAX_DEPTH) {
            Some(inner) => {
                let stated = inner.rsplit_once(':').filter(|(before, _)| !before.is_empty());
                let stated = stated.and_then(|(before, number)| Some((before, stated_weight(number)?)));
                let (inner, weight) = stated.unwrap_or((inner, weight * STEP));
                weigh(inner, weight, depth + 1, spans);
            }
            None if piece.is_empty() => {}
            None => spans.push((piece, weight)),
        }
    };
    for (at, c) in text.char_indices() {
        match c {
            '(' => {
                if nesting == 0 {
                    push(text.get(start..at).unwrap_or_default(), spans);
                    start = at;
                }
                nesting += 1;
            }
            ')' => {
                nesting -= 1;
                if nesting == 0 {
                    push(text.get(start..=at).unwrap_or_default(), spans);
                    start = at + 1;
                }
            }
            _ => {}
        }
    }
    push(text.get(start..).unwrap_or_default(), spans);
}

/// A number in Python's format, if it is finite.
fn stated_weight(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|weight: &f64| weight.is_finite())
}

/// Converts names of embeddings to Kiln's names: without `embedding:` and the file extension.
fn with_names(text: &str) -> String {
    const PREFIX: &str = "embedding:";
    if !text.contains(PREFIX) {
        return text.into();
    }
    let word = |word: &str| match word.strip_prefix(PREFIX) {
        Some(name) => {
            let plain = name.trim_end_matches(|c: char| c.is_whitespace() || c == ',');
            format!("{}{}", stem(plain), name.get(plain.len()..).unwrap_or_default())
        }
        None => word.to_string(),
    };
    text.split_inclusive([' ', '\n']).map(word).collect()
}
