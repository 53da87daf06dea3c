//! `<lora:name:0.8>`: tags in a prompt, which are removed from its text.

use std::fmt;

use crate::is_word;

/// A tag in a prompt: `<kind:argument:argument>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The word before the first colon: `lora`, `lyco`, `hypernet`.
    pub kind: String,
    /// The arguments, separated by colons. There is at least one.
    pub arguments: Vec<String>,
}

/// The tag as it stands in a prompt.
impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}:{}>", self.kind, self.arguments.join(":"))
    }
}

/// The text without its tags, and the tags in order. Text that is not a tag, such as `<3` or `<a b:c>`, does not
/// change.
pub fn take_tags(prompt: &str) -> (String, Vec<Tag>) {
    let (mut text, mut tags) = (String::with_capacity(prompt.len()), Vec::new());
    // There is no tag after the last `>`, so the search ends there.
    let (mut rest, last) = prompt.split_at(prompt.rfind('>').map_or(0, |end| end + 1));
    while let Some(start) = rest.find('<') {
        text += &rest[..start];
        match tag(&rest[start..]) {
            Some((tag, length)) => {
                tags.push(tag);
                rest = &rest[start + length..];
            }
            None => {
                text.push('<');
                rest = &rest[start + 1..];
            }
        }
    }
    (text + rest + last, tags)
}

/// The tag at the start of `text`, and its length in bytes.
fn tag(text: &str) -> Option<(Tag, usize)> {
    let inner = &text[1..];
    let colon = inner.find(|c| !is_word(c)).filter(|&at| at > 0 && inner[at..].starts_with(':'))?;
    let end = inner.find('>').filter(|&end| end > colon + 1)?;
    let arguments = inner[colon + 1..end].split(':').map(String::from).collect();
    Some((Tag { kind: inner[..colon].into(), arguments }, end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_leave_the_text() {
        let (text, tags) = take_tags("a <lora:ink wash:0.8:x>cat<hypernet:h>");
        assert_eq!(text, "a cat");
        let tag = |kind: &str, arguments: &[&str]| Tag {
            kind: kind.into(),
            arguments: arguments.iter().map(|argument| argument.to_string()).collect(),
        };
        assert_eq!(tags, [tag("lora", &["ink wash", "0.8", "x"]), tag("hypernet", &["h"])]);
        assert_eq!(tags[0].to_string(), "<lora:ink wash:0.8:x>");
    }

    #[test]
    fn text_without_tags_is_unchanged() {
        for text in ["<3", "a < b: c > d", "<lora>", "<:a>", "<lora:>", "<lora:a", "<<", ""] {
            assert_eq!(take_tags(text), (text.to_string(), vec![]));
        }
        assert_eq!(take_tags("<<lora:a>>").0, "<>");
    }
}
