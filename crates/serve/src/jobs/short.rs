//! Requests and jobs in few bytes, for what is kept and for lists.

use serde_json::{Map, Value};

use super::views::JobView;

/// The most bytes of a text in a list of jobs.
const LISTED: usize = 1 << 10;

/// Cuts the texts of a request that have more bytes, with dots behind them.
pub(crate) fn cut_texts(fields: &mut Map<String, Value>, most: usize) {
    fields.values_mut().for_each(|value| cut(value, most));
}

fn cut(value: &mut Value, most: usize) {
    match value {
        Value::String(text) => cut_text(text, most),
        Value::Array(values) => values.iter_mut().for_each(|value| cut(value, most)),
        Value::Object(fields) => cut_texts(fields, most),
        _ => {}
    }
}

/// Cuts a text that has more bytes, with dots behind it.
pub(crate) fn cut_text(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str("...");
        text.shrink_to_fit();
    }
}

/// About the bytes that a request takes in memory.
pub(super) fn bytes(fields: &Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        /// Of a value in its list or object.
        const VALUE: usize = 64;
        VALUE
            + match value {
                Value::String(text) => text.len(),
                Value::Array(values) => values.iter().map(of).sum(),
                Value::Object(fields) => bytes(fields),
                _ => 0,
            }
    }
    fields.iter().map(|(name, value)| name.len() + of(value)).sum()
}

impl JobView {
    /// The job as a list has it: long texts are cut, which `GET /v1/jobs/ID` has whole.
    pub(crate) fn short(mut self) -> Self {
        cut_texts(&mut self.request, LISTED);
        for image in &mut self.images {
            cut_text(&mut image.parameters, LISTED);
            cut(&mut image.request, LISTED);
        }
        self.warnings.iter_mut().for_each(|warning| cut_text(warning, LISTED));
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_are_cut_and_counted() {
        let fields =
            json!({ "prompt": "ä".repeat(1000), "loras": ["x".repeat(50)], "seed": 7, "more": { "a": "short" } });
        let Value::Object(mut fields) = fields else { panic!() };
        let before = bytes(&fields);
        assert!((2050..3000).contains(&before), "{before}");
        cut_texts(&mut fields, 11);
        assert_eq!(fields["prompt"], format!("{}...", "ä".repeat(5)));
        assert_eq!(
            (&fields["loras"][0], &fields["seed"], &fields["more"]["a"]),
            (&json!("xxxxxxxxxxx..."), &json!(7), &json!("short"))
        );
        assert!(bytes(&fields) < 500);
    }
}
