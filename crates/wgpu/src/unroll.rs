//! Loops of kernels that are written out.
//!
//! Drivers keep arrays in registers only if their indices are constants, and matrices in slow memory otherwise. WGSL has no attribute
//! that asks a driver to unroll a loop, so that loops after `/*unroll*/` are unrolled here.

use kiln_ops::{Error, Result};

/// The mark before a loop.
const MARK: &str = "/*unroll*/ for (var ";

/// Writes out the marked loops of `text`: `/*unroll*/ for (var i = 0u; i < COUNT; i++) { .. }`, in each copy of which `i` is a
/// constant. `count` has the values of the names.
///
/// # Errors
/// [`Error::Backend`] for a loop of another form, or a count that is not known.
pub(crate) fn unroll(kernel: &str, text: &str, count: &impl Fn(&str) -> Option<u32>) -> Result<String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let refused = || {
            let line = rest[at..].lines().next().unwrap_or_default();
            Error::Backend(format!("the kernel {kernel} has a loop that cannot be written out: {line}"))
        };
        result.push_str(&rest[..at]);
        let (head, body, after) = parts(&rest[at + MARK.len()..]).ok_or_else(refused)?;
        let (variable, bound) = header(head).ok_or_else(refused)?;
        let copies = count(bound).or_else(|| bound.strip_suffix('u')?.parse().ok()).ok_or_else(refused)?;
        let body = unroll(kernel, body, count)?;
        for copy in 0..copies {
            result.push_str(&format!("{{\nconst {variable} = {copy}u;{body}}}\n"));
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

/// The head of a loop up to its brace, its body within the braces, and the text after it.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (head, rest) = text.split_once('{')?;
    let mut open = 1;
    let end = rest.find(|letter| {
        open += i32::from(letter == '{') - i32::from(letter == '}');
        open == 0
    })?;
    Some((head, &rest[..end], &rest[end + 1..]))
}

/// The variable and the bound of `i = 0u; i < COUNT; i++) `.
fn header(head: &str) -> Option<(&str, &str)> {
    let (variable, rest) = head.split_once(" = 0u; ")?;
    let bound = rest.trim().strip_prefix(variable)?.strip_prefix(" < ")?.strip_suffix("++)")?;
    Some((variable, bound.strip_suffix(variable)?.strip_suffix("; ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<String> {
        unroll("test", text, &|name| (name == "N").then_some(2))
    }

    #[test]
    fn loops_are_written_out_within_others() {
        let text =
            "a /*unroll*/ for (var i = 0u; i < N; i++) { x[i]; /*unroll*/ for (var j = 0u; j < 1u; j++) { y[j]; } } b";
        let found = written(text).unwrap();
        let words: Vec<&str> = found.split_whitespace().collect();
        let copy = |i: &str| format!("{{ const i = {i}; x[i]; {{ const j = 0u; y[j]; }} }}");
        assert_eq!(words.join(" "), format!("a {} {} b", copy("0u"), copy("1u")));
    }

    #[test]
    fn other_loops_stay() {
        let text = "for (var i = 0u; i < N; i++) { }";
        assert_eq!(written(text).unwrap(), text);
    }

    #[test]
    fn unknown_counts_are_refused() {
        for text in ["/*unroll*/ for (var i = 0u; i < M; i++) { }", "/*unroll*/ for (var i = 1u; i < N; i++) { }"] {
            let message = written(text).unwrap_err().to_string();
            assert!(message.contains("the kernel test") && message.contains("for (var i"), "{message}");
        }
    }
}
