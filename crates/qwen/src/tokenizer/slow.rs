//! A tokenizer in `vocab.json`, `merges.txt` and `tokenizer_config.json`, as Qwen-Image's folder has it, without `tokenizer.json`.

use std::path::Path;

use serde_json::{Value, json};

use super::built_in::PIECES;
use crate::error::{Result, format_error};

/// The tokens by text, with their ids.
pub(super) const VOCAB: &str = "vocab.json";
/// Pairs of tokens to merge, in order of priority.
pub(super) const MERGES: &str = "merges.txt";
/// The settings; `added_tokens_decoder` has the added tokens by id.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// The contents of `tokenizer.json` that the texts of the other files mean. `path` gives their locations for messages.
pub(super) fn whole(path: &dyn Fn(&str) -> std::path::PathBuf, [vocab, merges, config]: [&str; 3]) -> Result<Value> {
    let vocab = parse(&path(VOCAB), vocab)?;
    let config = if config.is_empty() { Value::Null } else { parse(&path(CONFIG), config)? };
    let mut added = Vec::new();
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let Ok(id) = id.parse::<u32>() else {
            let problem = format!("`added_tokens_decoder` has the id {id:?}, expected a number");
            return Err(format_error(&path(CONFIG), problem));
        };
        let flag = |name: &str| token[name].as_bool().unwrap_or_default();
        added.push(json!({
            "id": id,
            "content": token["content"],
            "single_word": flag("single_word"),
            "lstrip": flag("lstrip"),
            "rstrip": flag("rstrip"),
            "normalized": flag("normalized"),
            "special": flag("special"),
        }));
    }
    added.sort_by_key(|token| token["id"].as_u64());
    let merges: Vec<&str> = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty()).collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges},
    }))
}

fn parse(path: &Path, text: &str) -> Result<Value> {
    let damaged = |error| format_error(path, format!("is not valid: {error}; download it again"));
    serde_json::from_str(text).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
