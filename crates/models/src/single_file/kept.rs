//! What a folder says and a single file's tensors do not: configurations, tokenizers, defaults. `kiln convert` keeps the
//! texts of these files in the notes of the file that it writes (`__metadata__` of safetensors, keys of GGUF), one note a
//! file, and a model that is opened from the file has them instead of what its shapes tell.
//!
//! The notes are a file's like any other: the same limits hold for them, and the same checks.

use std::collections::BTreeMap;

use kiln_clip::TOKENIZER_FILES;

use crate::files::TEXT_FOLDERS;

/// Before a file's path in its note's name.
const PREFIX: &str = "kiln.file:";
/// The note with the text encoders whose tensors have no `text_model.` in a folder, with spaces between.
const BARE: &str = "kiln.bare";
/// The files without which the others are not taken: half of a model's configurations may contradict what is derived.
const NEEDED: [&str; 5] = [
    "model_index.json",
    "unet/config.json",
    "vae/config.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
];
const OPTIONAL: [&str; 2] = ["text_encoder_2/config.json", "kiln.json"];

/// Texts of a model folder's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// By their paths in the folder.
    pub(crate) files: BTreeMap<String, String>,
    /// Whether the tensors of the first and the second text encoder have no `text_model.` in their names.
    pub(crate) bare: [bool; 2],
}

/// The paths of the files that are kept, tokenizers aside.
pub(crate) fn configurations() -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().chain(OPTIONAL)
}

/// Whether a file's note is one of these.
pub(crate) fn is_note(key: &str) -> bool {
    key == BARE || key.starts_with(PREFIX)
}

impl Kept {
    /// What the notes of a checkpoint have; nothing where they lack one of the files that belong together.
    pub(crate) fn of(notes: &BTreeMap<String, String>) -> Self {
        let tokenizers = TEXT_FOLDERS
            .iter()
            .flat_map(|(_, tokenizer)| TOKENIZER_FILES.iter().map(move |name| format!("{tokenizer}/{name}")));
        let paths = configurations().map(String::from).chain(tokenizers);
        let text = |path: String| Some((notes.get(&format!("{PREFIX}{path}"))?.clone(), path));
        let files: BTreeMap<String, String> = paths.filter_map(text).map(|(text, path)| (path, text)).collect();
        if !NEEDED.iter().all(|name| files.contains_key(*name)) {
            return Self::default();
        }
        let bare = notes.get(BARE).map(String::as_str).unwrap_or_default();
        Self { files, bare: TEXT_FOLDERS.map(|(name, _)| bare.split(' ').any(|bare| bare == name)) }
    }

    /// The notes that say so.
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

    /// The files of text encoder `i`'s tokenizer by their names; `None` where there are none.
    pub(crate) fn tokenizer(&self, i: usize) -> Option<BTreeMap<String, String>> {
        let (_, folder) = TEXT_FOLDERS.get(i)?;
        let below = |(path, text): (&String, &String)| {
            Some((path.strip_prefix(folder)?.strip_prefix('/')?.to_string(), text.clone()))
        };
        Some(self.files.iter().filter_map(below).collect::<BTreeMap<_, _>>()).filter(|files| !files.is_empty())
    }

    /// Whether there is nothing.
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
        for path in NEEDED.into_iter().chain(["kiln.json", "tokenizer/vocab.json", "tokenizer_2/merges.txt"]) {
            kept.files.insert(path.into(), format!("{{\"a\": \"{path}\"}}\n"));
        }
        let mut notes = kept.notes();
        assert_eq!(notes["kiln.file:kiln.json"], "{\"a\": \"kiln.json\"}\n");
        assert_eq!(notes["kiln.bare"], "text_encoder_2");
        notes.insert("format".into(), "pt".into());
        notes.insert("kiln.file:../../victim".into(), "x".into());
        notes.insert("kiln.file:tokenizer/other.py".into(), "x".into());
        assert_eq!(Kept::of(&notes), kept, "other names are not taken");
        assert_eq!(kept.tokenizer(0).unwrap().keys().collect::<Vec<_>>(), ["vocab.json"]);
        assert_eq!(kept.tokenizer(1).unwrap().keys().collect::<Vec<_>>(), ["merges.txt"]);
        notes.remove("kiln.file:unet/config.json");
        assert!(Kept::of(&notes).is_empty(), "half of them are none");
    }
}
