//! JSON values in messages.

use serde_json::Value;

/// The maximum number of shown characters.
const SHOWN: usize = 60;

/// The start of a value, for a message.
pub fn short(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(all) => format!("an object of {}", all.len()),
        other => other.to_string(),
    }
}

/// The start of a text, without control characters.
pub fn shortened(text: &str) -> String {
    let mut begin: String = text.chars().take(SHOWN).filter(|c| !c.is_control()).collect();
    if text.chars().count() > SHOWN {
        begin += " ..";
    }
    begin
}
