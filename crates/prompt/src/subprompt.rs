//! `AND`: several prompts that guide one image (composable diffusion, Liu et al., arXiv 2206.01714).

use crate::number::signed_float;
use crate::{find_word, is_space};

/// One of the prompts between `AND`s.
#[derive(Debug, Clone, PartialEq)]
pub struct Subprompt {
    /// The prompt without its weight.
    pub text: String,
    /// Its weight: the number after a colon at its end, or 1.
    pub weight: f64,
}

/// The prompts that the word `AND` separates, at least one. A single `a cat :1.5` has a weight as well, as in
/// AUTOMATIC1111.
pub fn subprompts(prompt: &str) -> Vec<Subprompt> {
    const AND: &str = "AND";
    let mut parts = Vec::new();
    let mut start = 0;
    while let Some(at) = find_word(prompt, AND, start) {
        parts.push(weighted(&prompt[start..at]));
        start = at + AND.len();
    }
    parts.push(weighted(&prompt[start..]));
    parts
}

/// Removes the weight from the end: a colon with a number, with optional spaces around both.
fn weighted(text: &str) -> Subprompt {
    let text = text.trim_end_matches(is_space);
    let weight = text.rfind(':').and_then(|colon| {
        let number = text[colon + 1..].trim_start_matches(is_space);
        let whole = signed_float(number) == Some(number.len()) && !number.contains(['e', 'E']);
        whole.then(|| number.parse().ok().map(|weight| (colon, weight)))?
    });
    match weight {
        Some((colon, weight)) => Subprompt { text: text[..colon].trim_end_matches(is_space).into(), weight },
        None => Subprompt { text: text.into(), weight: 1.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(prompt: &str) -> Vec<(String, f64)> {
        subprompts(prompt).into_iter().map(|part| (part.text, part.weight)).collect()
    }

    #[test]
    fn words_alone_separate() {
        assert_eq!(parts("a cat AND a dog"), [("a cat".into(), 1.0), (" a dog".into(), 1.0)]);
        assert_eq!(parts("SAND ANDy AND_b"), [("SAND ANDy AND_b".into(), 1.0)]);
        assert_eq!(parts("AND"), [("".into(), 1.0), ("".into(), 1.0)]);
        assert_eq!(parts("a,AND:b"), [("a,".into(), 1.0), (":b".into(), 1.0)]);
    }

    #[test]
    fn the_weight_stands_at_the_end() {
        assert_eq!(parts("a cat :1.2 AND a dog: -.5 "), [("a cat".into(), 1.2), (" a dog".into(), -0.5)]);
        assert_eq!(parts("a:2."), [("a".into(), 2.0)]);
        assert_eq!(parts("a:1:2"), [("a:1".into(), 2.0)]);
        for plain in ["(a:1.2)", "a:1e3", "a:", "a:b", "a:1.2.3", "a: ."] {
            assert_eq!(parts(plain), [(plain.into(), 1.0)], "{plain}");
        }
    }
}
