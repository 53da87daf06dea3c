//! Texts with weights in the dialect of requests.

/// A prompt in which `spans` have their weights and nothing else is parsed: no `AND`, `BREAK`, tag, schedule or
/// bracket. Spans are separated, as words of different spans are in ComfyUI and compel.
///
/// A backslash before a bracket or a backslash makes it text, and the parser removes any other backslash. A backslash
/// within a keyword, or after a `<` or `:`, therefore prevents its parsing and leaves no trace.
pub(crate) fn written(spans: &[(String, f64)]) -> String {
    let spans = spans.iter().filter(|(text, _)| !text.trim().is_empty());
    let written = spans.map(|(text, weight)| match *weight {
        1.0 => escaped(text),
        weight => format!("({}:{weight})", escaped(text)),
    });
    written.collect::<Vec<_>>().join(" ")
}

/// The text with all syntax escaped.
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
    // Text after a last `<` or `:` is outside of the span.
    if text.trim().ends_with(['<', ':']) {
        escaped.pop();
    }
    escaped
}

#[cfg(test)]
mod tests {
    use kiln_prompt::{PromptSchedule, spans, subprompts, take_tags};

    use super::*;

    /// The text for the encoders, as the engine parses it.
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
    fn only_weights_are_parsed() {
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
