//! The settings of a tokenizer besides its vocabulary: special tokens and preprocessing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::files::Files;
use super::token::Token;
use super::vocabulary::{Extras, Vocabulary};
use crate::error::{Result, format_error};

/// The file with most settings.
const CONFIG: &str = "tokenizer_config.json";
/// The sequence length with which CLIP's encoders were trained.
const CLIP_LENGTH: usize = 77;
/// A `model_max_length` above this is a placeholder: transformers writes 1e30 if the length is unknown.
const ABSURD_LENGTH: f64 = 65536.0;
/// The defaults of transformers' `CLIPTokenizer`.
pub(super) const BOS: &str = "<|startoftext|>";
pub(super) const EOS: &str = "<|endoftext|>";

/// The keys that `tokenizer_config.json` and `special_tokens_map.json` share, and the other keys of the first.
#[derive(Default, Deserialize)]
struct SettingsFile {
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    pad_token: Option<Token>,
    added_tokens_decoder: Option<BTreeMap<u32, Token>>,
    do_lower_case: Option<bool>,
    model_max_length: Option<f64>,
}

impl SettingsFile {
    fn named(&self) -> impl Iterator<Item = &Token> {
        [&self.bos_token, &self.eos_token, &self.unk_token, &self.pad_token].into_iter().flatten()
    }
}

/// The settings of a tokenizer, merged from all files.
pub(super) struct Settings {
    pub(super) bos: Token,
    pub(super) eos: Token,
    pub(super) unk: Token,
    pub(super) pad: Token,
    /// Tokens with their ids, which are in the vocabulary or follow it.
    pub(super) added: BTreeMap<u32, Token>,
    pub(super) lower_case: bool,
    /// The number of tokens in a chunk, including its begin and end.
    pub(super) max_length: usize,
}

impl Settings {
    /// Reads the files of a tokenizer's folder; each may be missing.
    ///
    /// As in transformers, `special_tokens_map.json` takes precedence over `tokenizer_config.json`, unless the latter
    /// has an `added_tokens_decoder`, which marks files that no longer need the former. `added_tokens_decoder` or
    /// `tokenizer.json`'s `added_tokens`, if they have a token, define how it is matched.
    pub(super) fn open(files: &Files<'_>, vocabulary: &Vocabulary) -> Result<Self> {
        let config: SettingsFile = read(files, CONFIG)?;
        let map: SettingsFile = read(files, "special_tokens_map.json")?;
        let added_by_name: BTreeMap<String, u32> = read(files, "added_tokens.json")?;
        let config_path = files.path(CONFIG);
        Self::of(&config, &map, added_by_name, vocabulary).map_err(|problem| format_error(&config_path, problem))
    }

    /// CLIP's own settings, with `pad` as padding.
    pub(super) fn clip(pad: &str, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |text: &str| Token(tokenizers::AddedToken::from(text, false).normalized(true));
        let [bos_token, eos_token, unk_token] = [BOS, EOS, EOS].map(|text| Some(token(text)));
        let map = SettingsFile { bos_token, eos_token, unk_token, pad_token: Some(pad.into()), ..Default::default() };
        Self::of(&SettingsFile::default(), &map, BTreeMap::new(), vocabulary)
            .map_err(|problem| format_error(&vocabulary.path, problem))
    }

    /// Merges the contents of the files. The error is a problem in `config`.
    fn of(
        config: &SettingsFile,
        map: &SettingsFile,
        added_by_name: BTreeMap<String, u32>,
        vocabulary: &Vocabulary,
    ) -> std::result::Result<Self, String> {
        let none = Extras::default();
        let extras = vocabulary.extras.as_ref().unwrap_or(&none);

        let special: Vec<&Token> = [map, config].into_iter().flat_map(SettingsFile::named).collect();
        let from_name = |(name, id): (String, u32)| {
            let special = special.iter().any(|token| token.content() == name);
            (id, Token(tokenizers::AddedToken::from(name, special)))
        };
        let mut added: BTreeMap<u32, Token> = added_by_name.into_iter().map(from_name).collect();
        added.extend(extras.added.iter().cloned());
        added.extend(config.added_tokens_decoder.iter().flatten().map(|(&id, token)| (id, token.clone())));

        let [first, second] = if config.added_tokens_decoder.is_some() { [config, map] } else { [map, config] };
        let find = |key: fn(&SettingsFile) -> &Option<Token>, extra: &Option<String>, default: &str| {
            let found = key(first).clone().or_else(|| key(second).clone());
            let found = found.or_else(|| extra.as_deref().map(Token::from)).unwrap_or_else(|| Token::from(default));
            let same_text = |token: &&Token| token.content() == found.content();
            added.values().find(same_text).cloned().unwrap_or(found)
        };
        let bos = find(|file| &file.bos_token, &extras.bos, BOS);
        let eos = find(|file| &file.eos_token, &extras.eos, EOS);
        let unk = find(|file| &file.unk_token, &extras.unk, eos.content());
        let pad = find(|file| &file.pad_token, &extras.pad, eos.content());

        let max_length = match config.model_max_length {
            None => CLIP_LENGTH,
            Some(length) if length > ABSURD_LENGTH => CLIP_LENGTH,
            Some(length) if length >= 3.0 => length as usize,
            Some(length) => {
                return Err(format!("model_max_length is {length}, expected at least 3: begin, one token, end"));
            }
        };
        let lower_case = config.do_lower_case.or(extras.lower_case).unwrap_or(true);
        Ok(Self { bos, eos, unk, pad, lower_case, max_length, added })
    }
}

impl Settings {
    /// The special tokens with their roles, in transformers' order.
    pub(super) fn named(&self) -> [(&'static str, &Token); 4] {
        [("begin", &self.bos), ("end", &self.eos), ("unknown", &self.unk), ("padding", &self.pad)]
    }
}

/// Reads a file, or returns the default if it is missing.
fn read<T: DeserializeOwned + Default>(files: &Files<'_>, name: &str) -> Result<T> {
    if !files.has(name) {
        return Ok(T::default());
    }
    serde_json::from_str(&files.text(name)?)
        .map_err(|error| format_error(&files.path(name), format!("is not valid: {error}; download it again")))
}
