//! The contents of a folder that a single file's tensors do not show: configurations, tokenizers, defaults. `kiln
//! convert` stores these files as text in the notes of its output (`__metadata__` of safetensors, keys of GGUF), one
//! note for each file. A model that is opened from the file uses them instead of values derived from shapes.
//!
//! Notes are untrusted: they are subject to the same limits and checks as files.

use std::collections::BTreeMap;

use kiln_clip::TOKENIZER_FILES;

use crate::files::TEXT_FOLDERS;

/// The prefix of a file's path in the name of its note.
const PREFIX: &str = "kiln.file:";
/// The note with the text encoders whose tensors lack `text_model.` in a folder, separated by spaces.
const BARE: &str = "kiln.bare";
/// The required files: with only some of them, a model's configurations could contradict the derived ones.
const NEEDED: [&str; 4] =
    ["model_index.json", "unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"];
/// The text encoders' files, one of which is there at least.
const TEXT: [&str; 2] = ["text_encoder/config.json", "text_encoder_2/config.json"];
const OPTIONAL: [&str; 1] = ["kiln.json"];

/// Texts of a model folder's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// By relative path.
    pub(crate) files: BTreeMap<String, String>,
    /// Whether the tensor names of the first and the second text encoder lack `text_model.`.
    pub(crate) bare: [bool; 2],
}

/// The paths of the stored files except tokenizers.
pub(crate) fn configurations() -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().chain(TEXT).chain(OPTIONAL)
}

/// Whether this is the note of such a file.
pub(crate) fn is_note(key: &str) -> bool {
    key == BARE || key.starts_with(PREFIX)
}

impl Kept {
    /// The files in the notes of a checkpoint; empty if a required file is missing.
    pub(crate) fn of(notes: &BTreeMap<String, String>) -> Self {
        let tokenizers = TEXT_FOLDERS
            .iter()
            .flat_map(|(_, tokenizer)| TOKENIZER_FILES.iter().map(move |name| format!("{tokenizer}/{name}")));
        let paths = configurations().map(String::from).chain(tokenizers);
        let text = |path: String| Some((notes.get(&format!("{PREFIX}{path}"))?.clone(), path));
        let files: BTreeMap<String, String> = paths.filter_map(text).map(|(text, path)| (path, text)).collect();
        let has = |name: &&str| files.contains_key(*name);
        if !NEEDED.iter().all(has) || !TEXT.iter().any(has) {
            return Self::default();
        }
        let bare = notes.get(BARE).map(String::as_str).unwrap_or_default();
        Self { files, bare: TEXT_FOLDERS.map(|(name, _)| bare.split(' ').any(|bare| bare == name)) }
    }

    /// The notes with these files.
    pub(crate) fn notes(&self) -> BTreeMap<String, String> {
        let mut notes: BTreeMap<String, String> =
            self.files.iter().map(|(path, text)| (format!("{PREFIX}{path}"), text.clone())).collect();
        let bare: Vec<&str> =
            TEXT_FOLDERS.iter().zip(self.bare).filter(|(_, bare)| *bare).map(|((name, _), _)| *name).collect();
        if !bare.is_empty() {
            notes.insert(BARE.into(), bare.join(" "));
        }
        notes
    }

    /// The files of text encoder `i`'s tokenizer by name; `None` if there are none.
    pub(crate) fn tokenizer(&self, i: usize) -> Option<BTreeMap<String, String>> {
        let (_, folder) = TEXT_FOLDERS.get(i)?;
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
        let mut kept = Kept { bare: [false, true], ..Kept::default() };
        for path in
            NEEDED.into_iter().chain(TEXT).chain(["kiln.json", "tokenizer/vocab.json", "tokenizer_2/merges.txt"])
        {
            kept.files.insert(path.into(), format!("{{\"a\": \"{path}\"}}\n"));
        }
        let mut notes = kept.notes();
        assert_eq!(notes["kiln.file:kiln.json"], "{\"a\": \"kiln.json\"}\n");
        assert_eq!(notes["kiln.bare"], "text_encoder_2");
        notes.insert("format".into(), "pt".into());
        notes.insert("kiln.file:../../victim".into(), "x".into());
        notes.insert("kiln.file:tokenizer/other.py".into(), "x".into());
        assert_eq!(Kept::of(&notes), kept, "other names are ignored");
        assert_eq!(kept.tokenizer(0).unwrap().keys().collect::<Vec<_>>(), ["vocab.json"]);
        assert_eq!(kept.tokenizer(1).unwrap().keys().collect::<Vec<_>>(), ["merges.txt"]);
        notes.remove("kiln.file:unet/config.json");
        assert!(Kept::of(&notes).is_empty(), "incomplete notes are ignored");
    }
}
