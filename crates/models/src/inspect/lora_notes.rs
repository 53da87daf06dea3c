//! Notes about a LoRA: the model that it was trained for, and the words that it was trained with.
//!
//! kohya's sd-scripts write `ss_base_model_version` and `ss_tag_frequency`, the number of images with each tag in each folder.
//! `modelspec.*` is the specification of Stability AI, which other trainers use as well.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::error::shortened;
use crate::foreign::ForeignModel;

/// The most words that are kept.
const WORDS: usize = 12;
/// The most characters of a value.
const LONGEST: usize = 200;

/// What a file says about a LoRA. All texts are the file's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LoraNotes {
    /// The model that it was trained for.
    pub base: Option<String>,
    /// The phrase that starts it, where the file has one.
    pub trigger: Option<String>,
    /// The most frequent tags of its training images, the most frequent first, with their numbers of images.
    pub words: Vec<(String, u64)>,
    /// Its rank, as the trainer wrote it.
    pub rank: Option<String>,
}

impl LoraNotes {
    /// The notes of a file with this metadata and these tensors.
    pub(super) fn of(metadata: &BTreeMap<String, String>, keys: &[String]) -> Self {
        let text = |names: &[&str]| {
            let found = names.iter().filter_map(|name| metadata.get(*name)).find(|text| !text.trim().is_empty());
            found.map(|text| shortened(text.trim(), LONGEST))
        };
        let base = text(&["ss_base_model_version", "modelspec.architecture", "ss_sd_model_name"]);
        Self {
            base: ForeignModel::of_lora(keys).map(String::from).or(base),
            trigger: text(&["modelspec.trigger_phrase", "ss_trigger_words"]),
            words: metadata.get("ss_tag_frequency").map(|text| frequent(text)).unwrap_or_default(),
            rank: text(&["ss_network_dim"]),
        }
    }
}

/// The most frequent tags in the JSON text of `ss_tag_frequency`: folders with tags and numbers. Other forms have none.
fn frequent(text: &str) -> Vec<(String, u64)> {
    let Ok(Value::Object(folders)) = serde_json::from_str(text) else { return Vec::new() };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (tag, count) in folders.values().filter_map(Value::as_object).flatten() {
        let tag = tag.trim();
        if !tag.is_empty() {
            let sum = counts.entry(tag).or_default();
            *sum = sum.saturating_add(count.as_u64().unwrap_or_default());
        }
    }
    let mut words: Vec<(&str, u64)> = counts.into_iter().collect();
    words.sort_by_key(|(tag, count)| (std::cmp::Reverse(*count), *tag));
    words.into_iter().take(WORDS).map(|(tag, count)| (shortened(tag, LONGEST), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(pairs: &[(&str, &str)]) -> LoraNotes {
        let metadata = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        LoraNotes::of(&metadata, &[])
    }

    #[test]
    fn the_most_frequent_tags_of_all_folders_come_first() {
        let found = notes(&[
            ("ss_base_model_version", "sdxl_base_v1-0"),
            ("ss_tag_frequency", r#"{"10_cat": {"a cat": 3, "ink ": 9}, "5_dog": {"ink": 1, "a dog": 3}}"#),
            ("ss_network_dim", "16"),
            ("modelspec.trigger_phrase", "inkdraw"),
        ]);
        assert_eq!((found.base.as_deref(), found.rank.as_deref()), (Some("sdxl_base_v1-0"), Some("16")));
        assert_eq!(found.trigger.as_deref(), Some("inkdraw"));
        let words: Vec<_> = found.words.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        assert_eq!(words, [("ink", 10), ("a cat", 3), ("a dog", 3)]);
    }

    #[test]
    fn damaged_notes_are_no_notes() {
        for text in ["", "{", "[1]", "{\"a\": 1}", "{\"a\": {\"\": 1}}", "{\"a\": null}"] {
            assert!(notes(&[("ss_tag_frequency", text)]).words.is_empty(), "{text}");
        }
        let huge = r#"{"a": {"x": 18446744073709551615}, "b": {"x": 18446744073709551615, "y": -1}}"#;
        assert_eq!(notes(&[("ss_tag_frequency", huge)]).words, [("x".to_string(), u64::MAX), ("y".to_string(), 0)]);
    }
}
