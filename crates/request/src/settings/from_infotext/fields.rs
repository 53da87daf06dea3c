//! The fields of an infotext, and which of them were asked for.

use std::collections::BTreeSet;
use std::str::FromStr;

use kiln_media::Infotext;

use crate::options::{OptionRow, Request};
use crate::settings::labels as l;

/// Fields that change nothing here: facts about the program and the batch, templates whose choices are made, and files,
/// which a run with the settings of an image looks for.
const SILENT: [&str; 24] = [
    l::VERSION,
    l::TEMPLATE,
    l::NEGATIVE_TEMPLATE,
    l::MODEL,
    l::MODEL_HASH,
    l::LORA_HASHES,
    l::INIT_IMAGE_HASH,
    "VAE",
    "VAE hash",
    "TI hashes",
    "TI",
    "Hashes",
    "Batch size",
    "Batch pos",
    "User",
    "App",
    "Backend",
    "Pipeline",
    "Parser",
    "Created Date",
    "Civitai resources",
    "Civitai metadata",
    "Wildcard prompt",
    "Wildcard negative prompt",
];

/// The begin of a value, for a message.
pub(super) fn short(value: &str) -> String {
    let mut begin: String = value.chars().take(60).filter(|c| !c.is_control()).collect();
    if value.chars().count() > 60 {
        begin += " ..";
    }
    begin
}

/// The fields of a text, of which those that were asked for are remembered.
pub(super) struct Fields<'a> {
    info: &'a Infotext,
    used: BTreeSet<&'a str>,
    warnings: Vec<String>,
}

impl<'a> Fields<'a> {
    /// The fields of `info`. Fields that change nothing count as read.
    pub(super) fn new(info: &'a Infotext) -> Self {
        Self { info, used: BTreeSet::from(SILENT), warnings: Vec::new() }
    }

    /// A sentence for each field that is not supported.
    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Adds a sentence about what cannot be met.
    pub(super) fn warn(&mut self, sentence: String) {
        self.warnings.push(sentence);
    }

    /// The text of a field as it is written, which does not count as asked for.
    pub(super) fn written(&self, name: &str) -> Option<&'a str> {
        self.info.get(name)
    }

    /// The value of a field parsed by `read`; a warning if it fails.
    pub(super) fn read<T>(&mut self, name: &'a str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.used.insert(name);
        let text = self.info.get(name)?;
        let value = read(text.trim());
        if value.is_none() {
            self.warnings.push(format!("{name}: {} is left out: Kiln does not know it", short(text)));
        }
        value
    }

    /// The value of a field by its own syntax.
    pub(super) fn parsed<T: FromStr>(&mut self, name: &'a str) -> Option<T> {
        self.read(name, |text| text.parse().ok())
    }

    /// Reads an option from the first of its keys that has a value.
    pub(super) fn option(&mut self, row: &OptionRow, request: &mut Request) {
        for key in row.infotext_keys() {
            let value = row.value_mut(request);
            if self.read(key, |text| value.read_infotext(text).then_some(())).is_some() {
                return;
            }
        }
    }

    /// Counts a field as asked for without reading it.
    pub(super) fn skip(&mut self, name: &'a str) {
        self.used.insert(name);
    }

    /// The names and texts of the fields that nobody asked for.
    pub(super) fn left(&self) -> Vec<(&'a str, &'a str)> {
        let all = self.info.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(name, _)| !self.used.contains(name)).collect()
    }
}
