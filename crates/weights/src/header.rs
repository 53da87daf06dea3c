//! The header of a safetensors file: the checks of the `safetensors` crate, and additional ones.

use std::collections::HashSet;
use std::fmt;

use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};

use crate::limits::{MAX_DIMS, MAX_TENSORS};

/// The largest header that the `safetensors` crate reads, in bytes.
const MAX_HEADER: usize = 100_000_000;
/// The maximum number of fields in a tensor's description. The format has three.
const MAX_FIELDS: usize = 16;

/// Reads and checks the header of a file. Returns the offset of the elements and the table of tensors.
///
/// The `safetensors` crate refuses offsets that overlap, leave holes, run past the end or do not fit the shapes, sizes
/// that overflow, unknown types and headers over 100 MB. It accepts a name that occurs twice and keeps one of the two
/// tensors. Which one the author of the file intended is unknown, so it is an error here. The numbers of tensors,
/// metadata entries and dimensions are bounded ([`crate::limits`]).
pub(crate) fn read(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    if let Some(what) = mistaken_for_weights(bytes) {
        return Err(format!("is {what}, not a safetensors file; download the file itself"));
    }
    let invalid = |error: &dyn fmt::Display| {
        format!("is not a valid safetensors file ({error}); it may be cut off, download it again")
    };
    json(bytes).map_or(Ok(()), check).map_err(|error| invalid(&error))?;
    let (length, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| invalid(&error))?;
    Ok((8 + length, metadata))
}

/// The header's JSON; `None` if its length is impossible, which the `safetensors` crate reports.
fn json(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    rest.get(..length).filter(|_| length <= MAX_HEADER)
}

/// The kind of file that a failed download often leaves instead of weights.
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

/// Refuses a header with more entries than any checkpoint has, or with a name that occurs twice. Only the names are
/// stored: the `safetensors` crate needs 20 to 40 times the size of a header that has many short entries.
fn check(json: &[u8]) -> serde_json::Result<()> {
    serde_json::Deserializer::from_slice(json).deserialize_map(Header)
}

/// The header's object.
struct Header;

impl<'de> Visitor<'de> for Header {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let most = if name == "__metadata__" { MAX_TENSORS } else { MAX_FIELDS };
            map.next_value_seed(Entry { name: &name, most, depth: 0 })?;
            if seen.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors, which no checkpoint needs")));
            }
            if let Some(name) = seen.replace(name) {
                return Err(A::Error::custom(format!("it names tensor `{name}` twice, which is ambiguous")));
            }
        }
        Ok(())
    }
}

/// The value of a name: the metadata, an object that describes a tensor, or a field of one of them. It counts its
/// contents.
struct Entry<'a> {
    /// The tensor's name.
    name: &'a str,
    /// The maximum number of fields.
    most: usize,
    /// 0 for the object, 1 for its fields, 2 for items of a list.
    depth: u8,
}

impl<'a> Entry<'a> {
    fn inner(&self) -> Entry<'a> {
        Entry { name: self.name, most: self.most, depth: self.depth + 1 }
    }

    fn too_many<E: serde::de::Error>(&self, most: usize, what: &str) -> E {
        E::custom(format!("`{}` has more than {most} {what}, which no checkpoint needs", self.name))
    }
}

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.depth {
            0 => deserializer.deserialize_map(self),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["an object", "a string, a number or a list", "a number"][usize::from(self.depth.min(2))])
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.depth > 0 {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let mut fields = 0;
        while map.next_key::<IgnoredAny>()?.is_some() {
            fields += 1;
            if fields > self.most {
                return Err(self.too_many(self.most, "fields"));
            }
            map.next_value_seed(self.inner())?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.depth > 1 {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut items = 0;
        while list.next_element_seed(self.inner())?.is_some() {
            items += 1;
            if items > MAX_DIMS {
                return Err(self.too_many(MAX_DIMS, "dimensions"));
            }
        }
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str) -> Vec<u8> {
        [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
    }

    #[test]
    fn excessive_counts_are_refused_before_they_are_stored() {
        let shape = format!(r#"{{"a": {{"dtype": "F32", "shape": [{}1], "data_offsets": [0, 4]}}}}"#, "1,".repeat(16));
        let message = read(&file(&shape)).unwrap_err();
        assert!(message.contains("`a` has more than 16 dimensions"), "{message}");
        let empty = |i| format!(r#""t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
        let tensors = |count: usize| format!("{{{}}}", (0..count).map(empty).collect::<Vec<_>>().join(","));
        assert_eq!(read(&file(&tensors(MAX_TENSORS))).unwrap().1.tensors().len(), MAX_TENSORS);
        let message = read(&file(&tensors(MAX_TENSORS + 1))).unwrap_err();
        assert!(message.contains("more than 65536 tensors"), "{message}");
        let notes: Vec<String> = (0..=MAX_TENSORS).map(|i| format!(r#""{i}":"""#)).collect();
        let message = read(&file(&format!(r#"{{"__metadata__":{{{}}}}}"#, notes.join(",")))).unwrap_err();
        assert!(message.contains("`__metadata__` has more than 65536 fields"), "{message}");
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused() {
        let one = r#""a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}"#;
        assert!(read(&file(&format!("{{{one}}}"))).is_ok());
        let message = read(&file(&format!("{{{one}, {one}}}"))).unwrap_err();
        assert!(message.contains("names tensor `a` twice"), "{message}");
        let message = read(&file(r#"{"__metadata__": {}, "__metadata__": {}}"#)).unwrap_err();
        assert!(message.contains("twice"), "{message}");
    }

    #[test]
    fn other_faults_are_refused_too() {
        let nested = r#"{"a": {"dtype": "F32", "shape": [[0]], "data_offsets": [0, 0]}}"#;
        for json in ["[]", "{", r#"{"a": 7}"#, r#"{"a": {"dtype": "F32"}}"#, r#"{"__metadata__": {"a": {}}}"#, nested] {
            let message = read(&file(json)).unwrap_err();
            assert!(message.contains("is not a valid safetensors file"), "{json}: {message}");
        }
    }
}
