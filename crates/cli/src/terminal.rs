//! Filters terminal output: no control characters and no characters that change the order of others.
//!
//! Names, texts and messages come from untrusted files. All output passes through this filter: the output stream, the
//! error stream, the log and progress bars.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character is printed unchanged: line ends and tabs, the characters that the standard library calls
/// printable (no control, format, private or unassigned characters), spaces of all widths, and the two joiners that
/// occur in words and emojis.
pub fn is_shown(c: char) -> bool {
    match c {
        '\n' | '\t' | '\u{200c}' | '\u{200d}' => true,
        '\u{2028}' | '\u{2029}' => false,
        _ if c.is_control() => false,
        _ if c.is_ascii() || c.is_whitespace() => true,
        _ => {
            // `escape_debug` of a text escapes unprintable characters; after another character it leaves accents
            // unchanged.
            let mut buffer = [b'a'; 5];
            let length = c.encode_utf8(&mut buffer[1..]).len();
            let text = std::str::from_utf8(&buffer[..=length]).unwrap_or_default();
            text.escape_debug().nth(1) == Some(c)
        }
    }
}

/// A text for people: filtered characters are written as escapes, `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |c, to| {
        let _ = write!(to, "{}", c.escape_unicode()); // writing to a string cannot fail
    })
}

/// A JSON text in which filtered characters are JSON escapes: the values are the same.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    escaped(json, |c, to| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(to, "\\u{unit:04x}");
        }
    })
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(is_shown) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_shown(c) { shown.push(c) } else { escape(c, &mut shown) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All characters of the category Cf in Unicode 15 (DerivedGeneralCategory.txt), except the two joiners.
    const FORMAT: [std::ops::RangeInclusive<u32>; 21] = [
        0xad..=0xad,
        0x600..=0x605,
        0x61c..=0x61c,
        0x6dd..=0x6dd,
        0x70f..=0x70f,
        0x890..=0x891,
        0x8e2..=0x8e2,
        0x180e..=0x180e,
        0x200b..=0x200b,
        0x200e..=0x200f,
        0x202a..=0x202e,
        0x2060..=0x2064,
        0x2066..=0x206f,
        0xfeff..=0xfeff,
        0xfff9..=0xfffb,
        0x110bd..=0x110bd,
        0x110cd..=0x110cd,
        0x13430..=0x1343f,
        0x1bca0..=0x1bca3,
        0x1d173..=0x1d17a,
        0xe0020..=0xe007f,
    ];

    #[test]
    fn terminals_get_no_control_characters() {
        let controls = (0..0x20).chain(0x7f..0xa0).filter(|c| ![0x9, 0xa].contains(c));
        for c in controls.chain(FORMAT.into_iter().flatten()).chain([0x2028, 0x2029]).filter_map(char::from_u32) {
            assert!(!is_shown(c), "{c:?}");
            let text = format!("a{c}b");
            assert_eq!(shown(&text), format!("a\\u{{{:x}}}b", u32::from(c)));
            let json = serde_json::to_string(&text).unwrap();
            let safe = shown_json(&json);
            assert!(safe.chars().all(is_shown), "{c:?}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }
    }

    #[test]
    fn texts_of_all_languages_are_unchanged() {
        for text in [
            "two\n\tlines, \"quoted\" 'and' \\",
            "赤いりんご、　大きい",
            "é e\u{301} क्षि",
            "👩‍🚀 ❤️ 🍎",
            "می‌خواهم",
            "a\u{a0}b",
        ] {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
