//! Values of JSON in messages.

use serde_json::Value;

/// Characters of a text that are shown.
const SHOWN: usize = 60;

/// The begin of a value, for a message.
pub fn short(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(all) => format!("an object of {}", all.len()),
        other => other.to_string(),
    }
}

/// The begin of a text, without control characters.
pub fn shortened(text: &str) -> String {
    let mut begin: String = text.chars().take(SHOWN).filter(|c| !c.is_control()).collect();
    if text.chars().count() > SHOWN {
        begin += " ..";
    }
    begin
}
