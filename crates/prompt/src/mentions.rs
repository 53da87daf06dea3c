//! Names in a text: the words of textual inversion.

use std::ops::Range;

/// Whether `text` contains `name` as a whole word, ignoring ASCII case.
pub fn mentions(text: &str, name: &str) -> bool {
    find_name(text, name).is_some()
}

/// The byte range of the first `name` in `text` as a whole word, ignoring ASCII case.
pub fn find_name(text: &str, name: &str) -> Option<Range<usize>> {
    let touches =
        |a: Option<char>, b: Option<char>| a.is_some_and(char::is_alphanumeric) && b.is_some_and(char::is_alphanumeric);
    let is_here = |start: &usize| {
        let end = start + name.len();
        let here = text.get(*start..end).is_some_and(|part| part.eq_ignore_ascii_case(name));
        here && !touches(text[..*start].chars().next_back(), name.chars().next())
            && !touches(name.chars().next_back(), text[end..].chars().next())
    };
    if name.is_empty() {
        return None;
    }
    text.char_indices().map(|(start, _)| start).find(is_here).map(|start| start..start + name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_as_a_whole_word() {
        assert_eq!(find_name("a <S1>, cat", "<s1>"), Some(2..6));
        assert!(mentions("x<s1>x", "<s1>") && mentions("ça cat", "cat"));
        assert!(!mentions("bobcat, cat2", "cat") && !mentions("", "cat") && !mentions("cat", ""));
    }
}
