//! A tokenizer in `vocab.json`, `merges.txt` and `tokenizer_config.json`, as Qwen-Image's folder has it, without `tokenizer.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::AddedToken;

use super::build::{build, merges_of};
use super::check_tokens;
use crate::error::{Result, format_error};

/// The tokens by text, with their ids.
pub(super) const VOCAB: &str = "vocab.json";
/// Pairs of tokens to merge, in order of priority.
pub(super) const MERGES: &str = "merges.txt";
/// The settings; `added_tokens_decoder` has the added tokens by id.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// The tokenizer of the texts of these files. `path` gives their locations for messages.
pub(super) fn read(
    path: &dyn Fn(&str) -> PathBuf,
    [vocab, merges, config]: [&str; 3],
) -> Result<tokenizers::Tokenizer> {
    let vocab_path = path(VOCAB);
    let refused = |problem: String| format_error(&vocab_path, problem);
    let ids: HashMap<String, u32> = parse(&vocab_path, vocab)?;
    let config: Config = if config.is_empty() { Config::default() } else { parse(&path(CONFIG), config)? };
    let added = config.added_tokens_decoder;
    let contents: Vec<&str> = added.values().map(|token| token.content.as_str()).collect();
    check_tokens(&ids.keys().map(String::as_str).collect::<Vec<_>>(), &contents).map_err(refused)?;
    let merges = merges_of(merges);
    let merges =
        merges.ok_or_else(|| format_error(&path(MERGES), "has a merge that is not a pair; download it again"))?;
    let tokenizer = build(ids.into_iter().collect(), merges, added.values().cloned().map(Into::into));
    let tokenizer = tokenizer.map_err(|error| refused(format!("cannot be used: {error}")))?;
    for (&id, Added { content, .. }) in &added {
        if tokenizer.token_to_id(content) != Some(id) {
            let problem = format!("gives the added token `{content}` the id {id}, which is not free");
            return Err(format_error(&path(CONFIG), problem));
        }
    }
    Ok(tokenizer)
}

/// `tokenizer_config.json`.
#[derive(Default, Deserialize)]
struct Config {
    /// By id.
    #[serde(default)]
    added_tokens_decoder: BTreeMap<u32, Added>,
}

#[derive(Clone, Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl From<Added> for AddedToken {
    fn from(added: Added) -> Self {
        let Added { content, single_word, lstrip, rstrip, normalized, special } = added;
        Self { content, single_word, lstrip, rstrip, normalized, special }
    }
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    let damaged = |error| format_error(path, format!("is not valid: {error}; download it again"));
    serde_json::from_str(text).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{ChatTemplate, Generation, TOKENIZER_FILE, Tokenizer};
    use super::*;

    /// The files of the older form, from the other one.
    fn older() -> BTreeMap<String, String> {
        let files: BTreeMap<_, _> =
            Tokenizer::built_in(Generation::Qwen2).unwrap().files().unwrap().into_iter().collect();
        let whole: Value = serde_json::from_str(&files[TOKENIZER_FILE]).unwrap();
        let pair = |merge: &Value| match merge {
            Value::Array(pair) => format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            other => format!("{}\n", other.as_str().unwrap()),
        };
        let merges: String = whole["model"]["merges"].as_array().unwrap().iter().map(pair).collect();
        let added: serde_json::Map<String, Value> = whole["added_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| (token["id"].to_string(), token.clone()))
            .collect();
        BTreeMap::from([
            (VOCAB.into(), whole["model"]["vocab"].to_string()),
            (MERGES.into(), format!("#version: 0.2\n{merges}")),
            (CONFIG.into(), json!({ "added_tokens_decoder": added }).to_string()),
        ])
    }

    #[test]
    fn the_older_files_are_the_same_tokenizer() {
        let own = Tokenizer::built_in(Generation::Qwen2).unwrap();
        let texts = older();
        let read = Tokenizer::from_texts("test".as_ref(), &texts).unwrap();
        assert!(read.is_same_as(&own));
        let ids =
            |tokenizer: &Tokenizer| tokenizer.encode("it's a fox <|im_end|> 狐", ChatTemplate::Thinking, 512).unwrap();
        assert_eq!(ids(&read), ids(&own));
        let folder = std::env::temp_dir().join(format!("kiln-qwen-older-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in &texts {
            std::fs::write(folder.join(name), text).unwrap();
        }
        assert!(Tokenizer::open(&folder).unwrap().is_same_as(&own));
        std::fs::write(folder.join(VOCAB), "{").unwrap();
        let message = Tokenizer::open(&folder).err().unwrap().to_string();
        assert!(message.contains("vocab.json: is not valid"), "{message}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
