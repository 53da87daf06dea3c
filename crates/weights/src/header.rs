//! The header of a safetensors file: what the `safetensors` crate checks, and one thing that it does not.

use std::fmt;

use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Reads and checks the header of a file's bytes. Gives the tensors' table and where their elements begin.
///
/// The `safetensors` crate refuses offsets that overlap, leave holes, run past the end or do not fit the shapes, sizes
/// that overflow, unknown types and headers over 100 MB. It accepts a name that occurs twice and keeps one of the two;
/// which tensor the file's author meant is unknown, so here that is an error too.
pub(crate) fn read(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    if let Some(what) = mistaken_for_weights(bytes) {
        return Err(format!("is {what}, not a safetensors file; download the file itself"));
    }
    let (length, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|error| format!("is no valid safetensors file ({error}); it may be cut off, download it again"))?;
    let json = bytes.get(8..8 + length).unwrap_or_default();
    match duplicate_name(json) {
        None => Ok((8 + length, metadata)),
        Some(name) => Err(format!("names tensor `{name}` twice; which one is meant is unknown")),
    }
}

/// What people have instead of weights when a download went wrong.
fn mistaken_for_weights(bytes: &[u8]) -> Option<&'static str> {
    let start = bytes.get(..64).unwrap_or(bytes).trim_ascii_start();
    let starts =
        |prefix: &str| start.len() >= prefix.len() && start[..prefix.len()].eq_ignore_ascii_case(prefix.as_bytes());
    if starts("version https://git-lfs") {
        Some("a Git LFS pointer")
    } else if starts("<!doctype") || starts("<html") {
        Some("a web page")
    } else if starts("PK\u{3}\u{4}") {
        Some("a zip archive (a PyTorch checkpoint?)")
    } else {
        None
    }
}

/// The first name that a JSON object has twice.
fn duplicate_name(json: &[u8]) -> Option<String> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut seen = std::collections::HashSet::new();
            let mut duplicate = None;
            while let Some(name) = map.next_key::<String>()? {
                map.next_value::<IgnoredAny>()?;
                if !seen.insert(name.clone()) {
                    duplicate.get_or_insert(name);
                }
            }
            Ok(duplicate)
        }
    }
    serde_json::Deserializer::from_slice(json).deserialize_map(Names).ok().flatten()
}
