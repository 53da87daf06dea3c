//! What an error is called on the command line: libraries name fields, the user knows flags.

use kiln_engine::Error;
use kiln_files::Error as FileError;

/// The message of an error, with flags in the place of fields.
pub fn message(error: &Error) -> String {
    match error {
        Error::Files(FileError::Value { field, found, expected }) => refused(&flag(field), found, expected),
        Error::Files(FileError::Exists(path)) => {
            format!("{} exists already; choose another name, or add --overwrite", path.display())
        }
        other => other.to_string(),
    }
}

fn refused(flag: &str, found: &str, expected: &str) -> String {
    format!("{flag} is {found}, expected {expected}")
}

/// The flag of a field: `latents_out` is `--latents-out`.
fn flag(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}
