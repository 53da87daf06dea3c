//! Bodies of JSON, parsed off the threads for answers.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::app::App;
use crate::error::Refused;

/// The most values of a body: a number of one byte takes dozens when it is parsed. Images are one value each.
const MOST_VALUES: usize = 1 << 18;
/// Bytes of memory for a byte of a body while it is parsed.
const PARSED_BYTE: usize = 3;

/// The fields of a body, which is dropped.
///
/// # Errors
/// [`Refused`] for what is not an object, and those of [`crate::intake::Intake::run`].
pub(super) async fn read(app: &App, body: Bytes) -> Result<Map<String, Value>, Refused> {
    parse_with(app, body, object).await
}

/// Parses a body by `parse`, and drops it.
///
/// # Errors
/// Errors of `parse`, and of [`crate::intake::Intake::run`].
pub(super) async fn parse_with<T: Send + 'static>(
    app: &App,
    body: Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    app.intake.run(body.len().saturating_mul(PARSED_BYTE), move || parse(&body)).await
}

/// The fields of an object.
///
/// # Errors
/// [`Refused`] for what is not an object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Refused> {
    check_values(body)?;
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Refused::invalid("the body is not a JSON object")),
        Err(error) => Err(Refused::invalid(format!("the body is not a JSON object: {error}"))),
    }
}

/// Takes a text out of the fields.
pub(crate) fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Refused> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Refused::value(name, other, "a text")),
    }
}

/// Refuses a body with more values than any request has.
///
/// # Errors
/// [`Refused`] with their number.
pub(super) fn check_values(body: &[u8]) -> Result<(), Refused> {
    let (mut values, mut in_text, mut is_escaped) = (1usize, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    if values > MOST_VALUES {
        return Err(Refused::invalid(format!("the body has {values} values, expected at most {MOST_VALUES}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_bounded_number_of_values() {
        let list = |n: usize| format!("{{\"a\":[{}]}}", vec!["1"; n].join(","));
        assert_eq!(object(list(1000).as_bytes()).unwrap()["a"].as_array().unwrap().len(), 1000);
        assert!(object(list(MOST_VALUES).as_bytes()).unwrap_err().message.contains("values"));
        // Commas of texts are none of lists.
        let text = format!("{{\"a\":\"{}\\\",\"}}", ",[{".repeat(MOST_VALUES));
        assert!(object(text.as_bytes()).is_ok());
        for wrong in ["[]", "1", "{", "", "\""] {
            assert!(object(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
