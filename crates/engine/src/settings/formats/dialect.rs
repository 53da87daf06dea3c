//! Texts with weights in the dialect that requests are written in.

/// A prompt in which `spans` have their weights and nothing else is read: no `AND`, `BREAK`, tag, schedule or bracket. Its
/// spans are apart, as words of different spans are in ComfyUI and compel.
///
/// A backslash before a bracket or a backslash makes it text, and any other backslash vanishes when a prompt is read. So one
/// within a word that would be read, or behind a `<` or `:`, keeps it from being read and leaves no trace.
pub(super) fn written(spans: &[(String, f64)]) -> String {
    let spans = spans.iter().filter(|(text, _)| !text.trim().is_empty());
    let written = spans.map(|(text, weight)| match *weight {
        1.0 => escaped(text),
        weight => format!("({}:{weight})", escaped(text)),
    });
    written.collect::<Vec<_>>().join(" ")
}

/// The text with all that would be read made text.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for word in text.trim().split_inclusive(|c: char| !c.is_alphanumeric() && c != '_') {
        let end = word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_').len();
        let (inner, behind) = word.split_at(end);
        match inner {
            "AND" => escaped += r"A\ND",
            "BREAK" => escaped += r"B\REAK",
            inner => escaped += inner,
        }
        for c in behind.chars() {
            match c {
                '(' | ')' | '[' | ']' | '\\' => escaped.extend(['\\', c]),
                '<' | ':' => escaped.extend([c, '\\']),
                c => escaped.push(c),
            }
        }
    }
    // What follows a last `<` or `:` is outside of the text.
    if text.trim().ends_with(['<', ':']) {
        escaped.pop();
    }
    escaped
}

#[cfg(test)]
mod tests {
    use kiln_clip::prompt::{PromptSchedule, spans, subprompts, take_tags};

    use super::*;

    /// What the encoders get of a text, as the engine reads it.
    fn read(text: &str) -> Vec<(String, f64)> {
        let parts = subprompts(&take_tags(text).0);
        assert_eq!((parts.len(), parts[0].weight), (1, 1.0), "{text}");
        let schedule = PromptSchedule::new(&parts[0].text, 10);
        assert_eq!(schedule.ranges().len(), 1, "{text}");
        let spans = spans(&schedule.ranges()[0].text);
        assert!(!spans.iter().any(|span| span.is_break()), "{text}");
        let spans = spans.into_iter().map(|span| (span.text.trim().to_string(), span.weight));
        spans.filter(|(text, _)| !text.is_empty()).collect()
    }

    #[test]
    fn nothing_but_weights_is_read() {
        for text in [
            "a cat",
            "a [cat:dog:0.5] AND b BREAK c",
            "AND",
            "BREAK, BREAK",
            "<lora:x:1> <3 a:1.2",
            r"\(a\) \\ \",
            "(((",
            ")):1.3)",
            "a: 1.5",
            "a::",
            "a|b [c|d]",
            "a\\\nb",
            "SAND BREAKER",
            "ぼ (é:ü)",
            "a <",
        ] {
            for weight in [1.0, 1.3, -0.5] {
                let expected = vec![(text.to_string(), weight)];
                assert_eq!(read(&written(&expected)), expected, "{text} {}", written(&expected));
            }
        }
        let both = [("a:".to_string(), 1.0), ("b <".to_string(), 1.2), ("c".to_string(), 1.0)];
        assert_eq!(read(&written(&both)), both);
    }
}
