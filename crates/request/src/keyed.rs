//! Texts of `key=value` fields with commas between them.

/// The fields of `text`, each once: of `keys`, whose case does not matter. A value of one of `files` may have commas. `example` is
/// how a text begins, for messages.
///
/// # Errors
/// A sentence about the unknown field.
pub(crate) fn fields(
    text: &str,
    keys: &[&'static str],
    files: &[&str],
    example: &str,
) -> Result<Vec<(&'static str, String)>, String> {
    let mut fields: Vec<(&'static str, String)> = Vec::new();
    for part in text.split(',') {
        let known = part.split_once('=').and_then(|(key, value)| {
            let key = keys.iter().find(|known| known.eq_ignore_ascii_case(key.trim()))?;
            Some((*key, value.trim().to_string()))
        });
        if let Some((key, _)) = &known
            && fields.iter().any(|(had, _)| had == key)
        {
            return Err(format!("has `{key}` twice, expected it once"));
        }
        match (known, fields.last_mut()) {
            (Some(field), _) => fields.push(field),
            // A comma within the name of a file.
            (None, Some((key, value))) if files.contains(key) => {
                value.push(',');
                value.push_str(part);
            }
            (None, _) => {
                let keys = keys.join(", ");
                return Err(format!("`{part}` is none of its fields, expected {example} and so on: {keys}"));
            }
        }
    }
    Ok(fields)
}

/// The number of a field.
///
/// # Errors
/// The value that was found and the expected one, in words.
pub(crate) fn number(key: &str, value: &str) -> Result<f64, String> {
    let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("`{key}` is {value}, expected a number"))
}

/// The switch of a field.
///
/// # Errors
/// The value that was found and the expected one, in words.
pub(crate) fn switch(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "on" => Ok(true),
        "false" | "off" => Ok(false),
        _ => Err(format!("`{key}` is {value}, expected true or false")),
    }
}

/// The choice of a field, which `find` finds by its name; `ids` are all names.
///
/// # Errors
/// The value that was found and the expected one, in words.
pub(crate) fn one_of<T>(
    key: &str,
    value: &str,
    find: impl FnOnce(&str) -> Option<T>,
    ids: &[&str],
) -> Result<T, String> {
    find(value).ok_or_else(|| format!("`{key}` is {value}, expected one of {}", ids.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_may_be_on_a_drive_and_have_commas() {
        let text = r"net=C:\Meine Modelle\Öl, fein.safetensors,image=\\?\D:\a=b.png,weight=0.5";
        let found = fields(text, &["net", "image", "weight"], &["net", "image"], "net=FILE").unwrap();
        let expected =
            [("net", r"C:\Meine Modelle\Öl, fein.safetensors"), ("image", r"\\?\D:\a=b.png"), ("weight", "0.5")];
        assert_eq!(found, expected.map(|(key, value)| (key, value.to_string())));
    }
}
