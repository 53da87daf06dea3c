//! `#` to the end of the line: comments, which are removed from a prompt.
//!
//! The rule is that of AUTOMATIC1111's web UI 1.10 (`modules/processing_scripts/comments.py`, `strip_comments`): two
//! substitutions, first of lines that consist of a comment, then of comments after text. Each removes the end of its
//! line and inserts a newline. A backslash does not escape a `#`.

/// The prompt without its comments.
pub fn without_comments(prompt: &str) -> String {
    if !prompt.contains('#') {
        return prompt.into();
    }
    substitute(&substitute(prompt, true), false)
}

/// Replaces every comment and the end of its line with a newline. With `whole_lines` a comment must begin its line, and
/// the newline before it is removed as well. A newline that belongs to one match cannot begin another.
fn substitute(text: &str, whole_lines: bool) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut copied, mut from) = (0, 0);
    while let Some(at) = text[from..].find('#').map(|at| from + at) {
        // A newline that an earlier match consumed is not available to this one.
        let begin = match (whole_lines, text[..at].chars().next_back()) {
            (false, _) | (true, None) => Some(at),
            (true, Some('\n')) if at > copied => Some(at - 1),
            (true, Some(_)) => None,
        };
        let end = text[at..].find('\n').map_or(text.len(), |end| at + end + 1);
        match begin {
            Some(begin) => {
                result += &text[copied..begin];
                result.push('\n');
                (copied, from) = (end, end);
            }
            None => from = at + 1,
        }
    }
    result + &text[copied..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are the return values of AUTOMATIC1111 1.10's function in Python 3.12.
    #[test]
    fn comments_are_removed_as_in_automatic1111() {
        for (text, expected) in COMMENTS {
            assert_eq!(without_comments(text), expected, "{text:?}");
        }
    }

    #[test]
    fn many_comments_take_bounded_time() {
        for text in ["#", "#\n", "\n#", "a#", "# #\n"] {
            without_comments(&text.repeat(200_000));
        }
    }

    const COMMENTS: [(&str, &str); 40] = [
        ("a cat", "a cat"),
        ("a cat # and a dog", "a cat \n"),
        ("# all", "\n"),
        ("#", "\n"),
        ("a\n# b\nc", "a\nc"),
        ("a\n#b\n#c\nd", "a\n\nd"),
        ("#a\n#b\nc", "\n\nc"),
        ("a # b\nc # d\n", "a \nc \n"),
        ("a##b\n#", "a\n"),
        ("\n#\n\n#x", "\n\n"),
        ("a #b#c\nd", "a \nd"),
        ("a \\# b\nc", "a \\\nc"),
        ("ä# ö\nü", "ä\nü"),
        ("#a\n\n#b\n", "\n\n"),
        ("a\r\n#b\r\nc", "a\r\nc"),
        ("#b# b bba# \n", "\n"),
        ("b#\n##\n", "b\n"),
        ("\na#a\n#", "\na\n"),
        ("\n\n#\n  \n\n  #\naa", "\n\n  \n\n  \naa"),
        ("\n\n# #\n \n\n ", "\n\n \n\n "),
        ("##\nab", "\nab"),
        ("\n\nb\n\n###\n\n\n##", "\n\nb\n\n\n\n"),
        ("# aa#abb", "\n"),
        ("### #\nb#", "\nb\n"),
        ("\n\nb\n#", "\n\nb\n"),
        ("#b# \n#a", "\n\n"),
        ("#\na #\n#b\n", "\na \n"),
        ("\n# \n \n#a#a# ", "\n \n"),
        ("#ab  # ##\n", "\n"),
        ("\n#aa", "\n"),
        ("\n##ba##b", "\n"),
        ("#\n #b\nbb", "\n \nbb"),
        ("\n\nb##aa", "\n\nb\n"),
        ("#\nba# #\nb", "\nba\nb"),
        ("\n#b# \n# \n", "\n\n"),
        ("ba\nb ", "ba\nb "),
        ("#\n\n#\n# \n#", "\n\n\n"),
        ("\na \na", "\na \na"),
        ("\nbb#\n##\n\n\n", "\nbb\n\n\n"),
        ("\n a\n", "\n a\n"),
    ];
}
