//! The contents of a folder that a single file's tensors do not show: configurations, tokenizers, defaults. `kiln
//! convert` stores these files as text in the notes of its output (`__metadata__` of safetensors, keys of GGUF), one
//! note for each file. A model that is opened from the file uses them instead of values derived from shapes.
//!
//! Notes are untrusted: they are subject to the same limits and checks as files.

use std::collections::{BTreeMap, BTreeSet};

use kiln_clip::TOKENIZER_FILES;
use kiln_families::{Component, FAMILIES, FamilyRef, SD, of_class, text_components};
use serde_json::Value;

/// The prefix of a file's path in the name of its note.
const PREFIX: &str = "kiln.file:";
/// The note with the text encoders whose tensors lack `text_model.` in a folder, separated by spaces.
const BARE: &str = "kiln.bare";
/// Files of every model. Those of its networks are required as well, of at least one text encoder: with only some of them, a
/// model's configurations could contradict the derived ones.
const NEEDED: [&str; 2] = ["model_index.json", "scheduler/scheduler_config.json"];
const OPTIONAL: [&str; 1] = ["kiln.json"];

/// Texts of a model folder's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// By relative path.
    pub(crate) files: BTreeMap<String, String>,
    /// The folders of the text encoders whose tensor names lack `text_model.`.
    pub(crate) bare: BTreeSet<&'static str>,
}

/// The paths of the stored files except tokenizers.
pub(crate) fn configurations() -> impl Iterator<Item = String> {
    let networks: BTreeSet<String> =
        FAMILIES.iter().flat_map(|family| family.components()).map(Component::config).collect();
    NEEDED.into_iter().chain(OPTIONAL).map(String::from).chain(networks)
}

/// The family that a stored `model_index.json` names; the first one if it names none, which opening the model refuses.
fn family_of(index: Option<&String>) -> FamilyRef {
    let index = index.and_then(|text| serde_json::from_str::<Value>(text).ok());
    index.and_then(|index| of_class(index["_class_name"].as_str()?)).unwrap_or(SD)
}

/// Whether this is the note of such a file.
pub(crate) fn is_note(key: &str) -> bool {
    key == BARE || key.starts_with(PREFIX)
}

impl Kept {
    /// The files in the notes of a checkpoint; empty if a required file is missing.
    pub(crate) fn of(notes: &BTreeMap<String, String>) -> Self {
        let folders = text_components().into_iter().filter_map(|text| text.tokenizer);
        let tokenizers =
            folders.flat_map(|tokenizer| TOKENIZER_FILES.iter().map(move |name| format!("{tokenizer}/{name}")));
        let paths = configurations().chain(tokenizers);
        let text = |path: String| Some((notes.get(&format!("{PREFIX}{path}"))?.clone(), path));
        let files: BTreeMap<String, String> = paths.filter_map(text).map(|(text, path)| (path, text)).collect();
        let components = family_of(files.get(NEEDED[0])).components();
        let has = |component: &&Component| files.contains_key(&component.config());
        let mut others = components.iter().filter(|component| !component.kind.is_text_encoder());
        let is_whole = NEEDED.iter().all(|name| files.contains_key(*name)) && others.all(|other| has(&other));
        if !is_whole || !text_components().iter().any(has) {
            return Self::default();
        }
        let bare = notes.get(BARE).map(String::as_str).unwrap_or_default();
        let folders = text_components().into_iter().map(|text| text.folder);
        Self { files, bare: folders.filter(|folder| bare.split(' ').any(|bare| bare == *folder)).collect() }
    }

    /// The notes with these files.
    pub(crate) fn notes(&self) -> BTreeMap<String, String> {
        let mut notes: BTreeMap<String, String> =
            self.files.iter().map(|(path, text)| (format!("{PREFIX}{path}"), text.clone())).collect();
        if !self.bare.is_empty() {
            notes.insert(BARE.into(), self.bare.iter().copied().collect::<Vec<_>>().join(" "));
        }
        notes
    }

    /// The files of the tokenizer in `folder` by name; `None` if there are none.
    pub(crate) fn tokenizer(&self, folder: &str) -> Option<BTreeMap<String, String>> {
        let below = |(path, text): (&String, &String)| {
            Some((path.strip_prefix(folder)?.strip_prefix('/')?.to_string(), text.clone()))
        };
        Some(self.files.iter().filter_map(below).collect::<BTreeMap<_, _>>()).filter(|files| !files.is_empty())
    }

    /// Whether there are no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_files_are_the_same() {
        let mut kept = Kept { bare: ["text_encoder_2"].into(), ..Kept::default() };
        for path in configurations().chain(["tokenizer/vocab.json", "tokenizer_2/merges.txt"].map(String::from)) {
            kept.files.insert(path.clone(), format!("{{\"a\": \"{path}\"}}\n"));
        }
        let mut notes = kept.notes();
        assert_eq!(notes["kiln.file:kiln.json"], "{\"a\": \"kiln.json\"}\n");
        assert_eq!(notes["kiln.bare"], "text_encoder_2");
        notes.insert("format".into(), "pt".into());
        notes.insert("kiln.file:../../victim".into(), "x".into());
        notes.insert("kiln.file:tokenizer/other.py".into(), "x".into());
        assert_eq!(Kept::of(&notes), kept, "other names are ignored");
        assert_eq!(kept.tokenizer("tokenizer").unwrap().keys().collect::<Vec<_>>(), ["vocab.json"]);
        assert_eq!(kept.tokenizer("tokenizer_2").unwrap().keys().collect::<Vec<_>>(), ["merges.txt"]);
        notes.remove("kiln.file:unet/config.json");
        assert!(Kept::of(&notes).is_empty(), "incomplete notes are ignored");
    }
}
