//! The text that AUTOMATIC1111 writes into images: a prompt, a negative prompt, and a line of fields.
//!
//! ```text
//! a red apple
//! Negative prompt: blurry
//! Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42, Size: 512x512, Model: "a, b", Version: v1.10.1
//! ```
//!
//! The parser follows AUTOMATIC1111 (`infotext_utils.parse_generation_parameters`): a key is a word character and then
//! word characters, spaces, `-` and `/`; a value ends at a comma, or is a JSON string. In addition, values may be JSON
//! objects and lists, which extensions write without quotation marks, and lines may follow the fields.

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// A line with fewer fields is not a line of fields.
const MIN_FIELDS: usize = 3;
const NEGATIVE: &str = "Negative prompt:";
/// The maximum number of fields; no program writes more.
const MAX_FIELDS: usize = 1000;
/// A longer JSON value, in bytes, is read as plain text up to its first comma.
const MAX_VALUE: usize = 256 << 10;
/// The first field of the line in every version.
const BEGIN: &str = "Steps:";

/// The settings of an image as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Infotext {
    /// The prompt.
    pub prompt: String,
    /// The negative prompt.
    pub negative_prompt: String,
    /// The other fields in their order.
    pub fields: Vec<(String, String)>,
}

impl Infotext {
    /// Parses a text; `None` if it has no line of fields.
    pub fn parse(text: &str) -> Option<Self> {
        // Weights such as `(word:1.2)` in JSON look like fields.
        if is_json(text) {
            return None;
        }
        let lines: Vec<&str> = text.trim().split('\n').map(str::trim).collect();
        let has_fields = |line: &&str| fields(line).len() >= MIN_FIELDS;
        let last = lines.len().checked_sub(1).filter(|&at| has_fields(&lines[at]));
        // Some extensions append their own lines after the fields.
        let at = last.or_else(|| lines.iter().rposition(|line| line.starts_with(BEGIN) && has_fields(line)))?;
        let (mut prompt, mut negative, mut is_negative) = (Vec::new(), Vec::new(), false);
        for line in &lines[..at] {
            match line.strip_prefix(NEGATIVE) {
                Some(rest) => {
                    is_negative = true;
                    negative.push(rest.trim());
                }
                None if is_negative => negative.push(line),
                None => prompt.push(*line),
            }
        }
        let mut all = fields(lines[at]);
        for line in &lines[at + 1..] {
            if let Some((key, value)) = line.split_once(':').filter(|_| all.len() < MAX_FIELDS) {
                all.push((key.trim().into(), value.trim().into()));
            }
        }
        Some(Self { prompt: prompt.join("\n"), negative_prompt: negative.join("\n"), fields: all })
    }

    /// The value of a field.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// The fields of a line. Invalid parts are skipped.
fn fields(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word).filter(|_| found.len() < MAX_FIELDS) {
        rest = &rest[start..];
        let is_key = |c: char| is_word(c) || matches!(c, ' ' | '-' | '/');
        let end = rest.find(|c| !is_key(c)).unwrap_or(rest.len());
        let (key, behind) = rest.split_at(end);
        match behind.strip_prefix(':') {
            Some(behind) if key.chars().nth(1).is_some() => {
                let (value, behind) = value(behind.trim_start());
                found.push((key.to_string(), value));
                rest = behind;
            }
            // No key starts before the colon or other character at this position.
            _ => rest = behind,
        }
    }
    found
}

/// The value at the start of `text`, and the text after the comma that ends it.
fn value(text: &str) -> (String, &str) {
    // Only this part of the text is searched, for all fields together: longer text is not a value.
    let part = text.get(..text.floor_char_boundary(MAX_VALUE)).unwrap_or(text);
    if part.starts_with('"') {
        let mut values = Deserializer::from_str(part).into_iter::<String>();
        if let Some(Ok(value)) = values.next()
            && let Some(behind) = text.get(values.byte_offset()..).and_then(ended)
        {
            return (value, behind);
        }
    } else if part.starts_with(['{', '[']) {
        let mut values = Deserializer::from_str(part).into_iter::<IgnoredAny>();
        if let Some(Ok(_)) = values.next()
            && let Some((json, behind)) = text.split_at_checked(values.byte_offset())
            && let Some(behind) = ended(behind)
        {
            return (json.to_string(), behind);
        }
    }
    let (value, behind) = text.split_once(',').unwrap_or((text, ""));
    (value.trim_end().to_string(), behind)
}

/// Whether a text is a JSON object. Such a text does not contain settings of AUTOMATIC1111.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The text after an initial comma; empty at the end.
fn ended(text: &str) -> Option<&str> {
    let text = text.trim_start();
    if text.is_empty() { Some(text) } else { text.strip_prefix(',') }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A value, quoted as a JSON string if a reader would not get it back otherwise: if a comma or colon would end it, or
/// its first character would be misread.
pub fn quoted(value: &str) -> String {
    let is_plain =
        !value.contains([',', ':', '\n', '\r', '"']) && !value.starts_with(['{', '[']) && value.trim() == value;
    if is_plain { value.to_string() } else { Value::from(value).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Infotext {
        Infotext::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn prompts_may_have_lines() {
        let found = parse("a cat,\n  sitting \n\nNegative prompt: dog\nbird\nSteps: 20, Sampler: Euler a, Seed: 1\n");
        assert_eq!((&*found.prompt, &*found.negative_prompt), ("a cat,\nsitting\n", "dog\nbird"));
        let found = parse("Negative prompt: x\r\nSteps: 20, Sampler: Euler a, Seed: 1");
        assert_eq!((&*found.prompt, &*found.negative_prompt), ("", "x"));
        // A second one in the middle of the negative prompt goes on with it, as in AUTOMATIC1111.
        let found = parse("a\nNegative prompt: b\nNegative prompt: c\nSteps: 20, Sampler: Euler a, Seed: 1");
        assert_eq!((&*found.prompt, &*found.negative_prompt), ("a", "b\nc"));
        assert_eq!(parse("a Negative prompt: b\nSteps: 1, Seed: 2, Eta: 3").prompt, "a Negative prompt: b");
    }

    #[test]
    fn values_may_be_quoted_and_have_commas() {
        let found = parse(
            "a\nSteps: 20, Size: 512x768, Model: \"a, \\\"b\\\": c\", Lora hashes: \"x: 12, y: 34\", Hashes: {\"model\": \
             \"ab\", \"lora:x\": \"cd\"}, ControlNet 0: \"Module: canny, Weight: 1\", A/b-c d: , Version: v1.10.1",
        );
        let expected = [
            ("Steps", "20"),
            ("Size", "512x768"),
            ("Model", "a, \"b\": c"),
            ("Lora hashes", "x: 12, y: 34"),
            ("Hashes", "{\"model\": \"ab\", \"lora:x\": \"cd\"}"),
            ("ControlNet 0", "Module: canny, Weight: 1"),
            ("A/b-c d", ""),
            ("Version", "v1.10.1"),
        ];
        assert_eq!(found.fields, expected.map(|(key, value)| (key.to_string(), value.to_string())));
        assert_eq!(found.get("Size"), Some("512x768"));
    }

    #[test]
    fn invalid_json_values_are_text() {
        let found = parse("Steps: 20, Model: \"half, VAE: {a, TI: [1;2], Seed: 5");
        let values: Vec<&str> = found.fields.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["20", "\"half", "{a", "[1;2]", "5"]);
    }

    #[test]
    fn lines_after_the_fields_are_fields() {
        let found = parse("a cat\nSteps: 20, Sampler: Euler, Seed: 1\nTemplate: a {cat|dog}\nNegative Template: b");
        assert_eq!(found.prompt, "a cat");
        assert_eq!((found.get("Template"), found.get("Negative Template")), (Some("a {cat|dog}"), Some("b")));
    }

    #[test]
    fn texts_without_fields_are_ignored() {
        for text in ["", "a cat", "a: b, c: d", "Steps: 20, Seed: 1", "{\"prompt\": {\"a\": 1, \"b\": 2}}", "\n\n"] {
            assert_eq!(Infotext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn quoted_values_round_trip() {
        for text in
            ["plain", "a, b", "a: b", "\"a\"", "a\"b", " a ", "", "\\", "a\nb\r\u{7f}\u{1b}", "{a", "[1]", "ぼ,"]
        {
            let found = parse(&format!("Steps: 20, Model: {}, Seed: 1, Eta: 2", quoted(text)));
            assert_eq!(found.get("Model"), Some(text));
            assert_eq!(found.fields.len(), 4, "{text}");
        }
        assert_eq!(quoted("v1-5_pruned (fp16)"), "v1-5_pruned (fp16)");
    }

    #[test]
    fn json_is_not_an_infotext() {
        for text in [
            r#"{"prompt": "(a:1.2), (b:1.3), (c:1.4)", "steps": 20}"#,
            "\n {\"a\": \"Steps: 1, Sampler: x, Seed: 2\"}\n",
        ] {
            assert_eq!(Infotext::parse(text), None, "{text}");
        }
        let prompt = "{a|b}, {c\nSteps: 20, Sampler: Euler, Seed: 1";
        assert_eq!(parse(prompt).prompt, "{a|b}, {c");
    }

    #[test]
    fn fields_and_values_are_bounded() {
        let found = parse(&"aa: 1, ".repeat(100_000));
        assert_eq!(found.fields.len(), MAX_FIELDS);
        let found = parse(&"aa:[1,".repeat(100_000));
        assert_eq!(found.fields.len(), MAX_FIELDS);
        let long = format!("Steps: 1, Seed: 2, Model: \"{}, x\", Eta: 0", "y".repeat(MAX_VALUE));
        assert_eq!(parse(&long).get("Model").map(str::len), Some(MAX_VALUE + 1));
        let lines = format!("Steps: 1, Sampler: Euler, Seed: 2\n{}", "a: b\n".repeat(10_000));
        assert_eq!(parse(&lines).fields.len(), MAX_FIELDS);
    }

    #[test]
    fn hostile_texts_use_bounded_stack_and_time() {
        for text in ["a", "a:", "aa:", "aa:\"", "aa:\"\\", "aa:{\"", "[", "{\"a\":", ",", " ", "\"", "aa:[", "Steps:\n"]
        {
            Infotext::parse(&text.repeat(50_000));
        }
    }
}
