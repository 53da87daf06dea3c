//! The options of a request: one table, in which each option is one row.
//!
//! A row ([`OptionRow`]) has the option's name, type, range, default, help and its key in an image's settings. The table
//! ([`OPTIONS`]) also declares the fields of [`Request`]. These parts of Kiln iterate over it and name no option:
//!
//! - range checks and their messages,
//! - the infotext and the JSON of images, written and read,
//! - the fields of batch files, with suggestions for unknown names,
//! - the JSON schema of a request ([`request_schema`]),
//! - the arguments of the command line, their help, and the tables in `docs/`.
//!
//! A message names an option between backticks (`` `cfg_scale` ``). Front ends replace these names by their own with
//! [`respell`].

mod check;
mod declare;
mod feature;
mod input_table;
mod kinds;
mod resolved;
mod row;
#[cfg(test)]
pub(crate) mod samples;
mod scalar;
mod schema;
mod spelling;
mod table;
mod value;

use kiln_scheduler::{MAX_NAME, closest};

pub(crate) use check::{check, refuse_foreign, refuse_ignored};
pub use feature::ModelFeature;
pub use kinds::MAX_IMAGES;
pub(crate) use resolved::OptionSet;
pub use row::{InfotextKey, OptionGroup, OptionKind, OptionRow};
pub use schema::request_schema;
pub use spelling::respell;
pub use spelling::shown;
pub use table::{
    FlowOptions, GuidanceOptions, ImageOptions, NetworkOptions, OPTIONS, RefinerOptions, Request, SizeOptions,
};
pub(crate) use table::{sampling, set_sampling};
pub use value::OptionValue;

/// The row of the option with this name or alias. Case and hyphens do not matter.
pub fn find_option(name: &str) -> Option<&'static OptionRow> {
    if name.len() > MAX_NAME {
        return None;
    }
    let plain = name.trim().to_ascii_lowercase().replace('-', "_");
    OPTIONS.iter().find(|row| row.names().any(|known| known == plain))
}

/// The names of options that are nearest to an unknown one, as the end of a sentence ([`closest`]); `more` has names besides
/// the options'.
pub fn nearest_option(name: &str, more: &[&'static str]) -> String {
    let options = OPTIONS.iter().flat_map(|row| row.names().map(|known| (known, row.name)));
    closest(name, options.chain(more.iter().map(|name| (*name, *name))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_the_requests_fields() {
        let request = serde_json::to_value(Request::default()).unwrap();
        let fields: BTreeSet<&str> = request.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, OPTIONS.iter().map(|row| row.name).collect());
    }

    #[test]
    fn names_and_keys_are_unique() {
        let names: Vec<&str> = OPTIONS.iter().flat_map(OptionRow::names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let keys: Vec<&str> = OPTIONS.iter().flat_map(OptionRow::infotext_keys).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn options_are_found_by_any_of_their_names() {
        for name in ["cfg_scale", "cfg", "CFG-Scale", " cfg "] {
            assert_eq!(find_option(name).map(|row| row.name), Some("cfg_scale"), "{name}");
        }
        assert_eq!(find_option("variation-seed").map(|row| row.name), Some("subseed"));
        assert!(find_option("tiling").is_none());
        assert!(nearest_option("promt", &["model"]).starts_with(", did you mean prompt"));
        assert!(nearest_option("modle", &["model"]).starts_with(", did you mean model"));
    }

    /// A help is a sentence with a full stop; the range and the default are separate.
    #[test]
    fn help_texts_are_sentences() {
        for row in OPTIONS {
            let help = row.help();
            assert!(help.ends_with('.') && !help.contains("  ") && !help.contains("--"), "{}: {help}", row.name);
            assert!(!help.contains("Default:"), "{}: {help}", row.name);
        }
    }
}
