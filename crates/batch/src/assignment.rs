//! Fields that a user sets for every job.

use std::str::FromStr;

use kiln_request::{JobField, RequestBuilder};

/// `key=value`: a field for every job.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment(pub(crate) RequestBuilder);

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected a field and its value, as in steps=30")?;
        of_text(JobField::named(name)?, value).map(Self)
    }
}

/// A field with the value that a user wrote.
///
/// # Errors
/// A message with the field.
pub(crate) fn of_text(field: JobField, text: &str) -> Result<RequestBuilder, String> {
    let mut fields = RequestBuilder::default();
    fields.set_text(field, text).map_err(|problem| format!("{}: {problem}", field.name()))?;
    Ok(fields)
}
