//! Numbers in prompts. Each function returns the number of bytes of `text`, from its start, that form the number.

/// The digits at the start of `text`.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn sign(text: &str) -> usize {
    usize::from(text.starts_with(['+', '-']))
}

/// An optional exponent.
fn exponent(text: &str) -> usize {
    let Some(rest) = text.strip_prefix(['e', 'E']) else { return 0 };
    match (sign(rest), digits(&rest[sign(rest)..])) {
        (_, 0) => 0,
        (sign, digits) => 1 + sign + digits,
    }
}

/// `3`, `-.5`, `1.`, `2e3`: the times of a schedule.
pub(super) fn signed_float(text: &str) -> Option<usize> {
    let start = sign(text);
    let mut end = start + digits(&text[start..]);
    let mut any = end - start;
    if text[end..].starts_with('.') {
        let decimals = digits(&text[end + 1..]);
        any += decimals;
        end += 1 + decimals;
    }
    (any > 0).then(|| end + exponent(&text[end..]))
}

/// `[+-]?[.\d]+`: the weights in brackets. The match need not be a number: `1.2.3`.
pub(super) fn signed_digits_and_dots(text: &str) -> Option<usize> {
    let start = sign(text);
    let count = text[start..].bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    (count > 0).then_some(start + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_end() {
        for (text, length) in
            [("3]", 1), ("-.5 ]", 3), ("1.", 2), ("2e3x", 3), ("2ex", 1), ("+1.5e-2", 7), ("1.2.3", 3)]
        {
            assert_eq!(signed_float(text), Some(length), "{text}");
        }
        for text in ["", "-", ".", "e3", "x1"] {
            assert_eq!(signed_float(text), None, "{text}");
        }
        assert_eq!(signed_digits_and_dots("1.2.3)"), Some(5));
        assert_eq!(signed_digits_and_dots("+)"), None);
    }
}
