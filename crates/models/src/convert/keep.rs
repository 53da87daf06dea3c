//! The parts of a model folder that a single file stores in addition to tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_clip::TOKENIZER_FILES;
use kiln_families::{TokenizerFiles, sentencepiece_as_texts};
use kiln_weights::{ParamSource, open_component, read_small_text};

use super::parts::ConvertedModel;
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::single_file::kept::{Kept, configurations};

/// Bytes of a tokenizer's file. CLIP's largest has 3.6 MB.
pub(super) const MAX_TOKENIZER_FILE: u64 = 32 << 20;
/// Maximum bytes of all files together. Headers of safetensors files are limited to 100 MB, and readers load them
/// completely.
const MAX_KEPT: usize = 16 << 20;

/// The files to store, and the names of those that are too large.
pub(super) fn files_to_keep(files: &ModelFiles, parts: &ConvertedModel) -> Result<(Kept, Vec<String>)> {
    if !files.has_own_configs() {
        return Ok((Kept::default(), Vec::new())); // they are derived from the tensors again
    }
    let mut kept = Kept::default();
    for name in configurations().filter(|name| name != "kiln.json" && files.has_config(name)) {
        let text = files.config(&name)?;
        kept.files.insert(name, text);
    }
    if let Some((_, text)) = files.defaults("kiln.json")? {
        kept.files.insert("kiln.json".into(), text);
    }
    let mut without_room = Vec::new();
    for (i, text) in parts.text.iter().enumerate() {
        let (folder, tokenizer) = (files.text_folder(i), files.tokenizer_folder(i));
        if files.is_bare(i)? {
            kept.bare.insert(folder);
        }
        let texts = match files.tokenizer_files(i) {
            None | Some(TokenizerFiles::BuiltIn(_)) => continue,
            Some(TokenizerFiles::Kept { texts, .. }) => texts,
            Some(TokenizerFiles::Folder(from)) => texts(&from)?,
        };
        if texts.is_empty() {
            continue; // a folder without a tokenizer
        }
        // Files that equal the defaults of a file without them are not stored.
        if let Some(own) = text.tokenizer
            && own.is_in(Path::new(folder), &texts)?
        {
            continue;
        }
        let bytes = |texts: &BTreeMap<String, String>| texts.values().map(String::len).sum::<usize>();
        if bytes(&kept.files) + bytes(&texts) > MAX_KEPT {
            without_room.push(tokenizer.to_string());
            continue;
        }
        kept.files.extend(texts.into_iter().map(|(name, text)| (format!("{tokenizer}/{name}"), text)));
    }
    Ok((kept, without_room))
}

/// The texts of a tokenizer's files. `spiece.model`, which is not text, becomes `tokenizer.json`.
fn texts(folder: &Path) -> Result<BTreeMap<String, String>> {
    let there = TOKENIZER_FILES.into_iter().map(|name| (name, folder.join(name))).filter(|(_, path)| path.exists());
    let read = |(name, path): (&str, PathBuf)| {
        Ok((name.to_string(), read_small_text(&path, MAX_TOKENIZER_FILE).map_err(Error::read(&path))?))
    };
    let mut texts = there.map(read).collect::<Result<BTreeMap<_, _>>>()?;
    let converted = sentencepiece_as_texts(folder)?.into_iter().flatten();
    texts.extend(converted.map(|(name, text)| (name.to_string(), text)));
    Ok(texts)
}

/// Whether the text encoder in `folder` has the names of transformers 5, without `text_model.`.
pub(crate) fn is_bare(folder: &Path) -> Result<bool> {
    Ok(open_component(folder)?.info("embeddings.token_embedding.weight").is_some())
}
