//! What stands beside the vocabulary: special tokens and how text is prepared.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::files::Files;
use super::vocabulary::{Extras, Vocabulary};
use crate::error::{Result, format_error};

/// The file with most settings.
const CONFIG: &str = "tokenizer_config.json";
/// The length to which CLIP's encoders were trained.
const CLIP_LENGTH: usize = 77;
/// A `model_max_length` above this means that its writer did not know: transformers writes 1e30 then.
const ABSURD_LENGTH: f64 = 65536.0;
/// The defaults of transformers' `CLIPTokenizer`.
pub(super) const BOS: &str = "<|startoftext|>";
pub(super) const EOS: &str = "<|endoftext|>";

/// A token that is found in a text before the text is cut into words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "TokenEntry")]
pub(super) struct Token(pub(super) tokenizers::AddedToken);

impl Token {
    pub(super) fn content(&self) -> &str {
        &self.0.content
    }
}

/// How files write a token: its text alone, or with how it is matched.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenEntry {
    Text(String),
    Full {
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
    },
}

impl From<TokenEntry> for Token {
    fn from(entry: TokenEntry) -> Self {
        Self(match entry {
            TokenEntry::Text(content) => tokenizers::AddedToken::from(content, true),
            TokenEntry::Full { content, single_word, lstrip, rstrip, normalized, special } => {
                tokenizers::AddedToken { content, single_word, lstrip, rstrip, normalized, special }
            }
        })
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        TokenEntry::Text(text.to_string()).into()
    }
}

/// The keys that `tokenizer_config.json` and `special_tokens_map.json` share, and those of the first alone.
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

/// The settings of a tokenizer, from wherever they stand.
pub(super) struct Settings {
    pub(super) bos: Token,
    pub(super) eos: Token,
    pub(super) unk: Token,
    pub(super) pad: Token,
    /// Tokens with their ids, that the vocabulary has or that follow it.
    pub(super) added: BTreeMap<u32, Token>,
    pub(super) lower_case: bool,
    /// Tokens in a chunk, its begin and end included.
    pub(super) max_length: usize,
}

impl Settings {
    /// Reads the files of a tokenizer's folder; each may be missing.
    ///
    /// As in transformers, `special_tokens_map.json` goes before `tokenizer_config.json`, unless the latter has an
    /// `added_tokens_decoder`, the mark of files that need the former no more; how a token is matched is said by
    /// `added_tokens_decoder` or by `tokenizer.json`'s `added_tokens`, if they have it.
    pub(super) fn open(files: &Files<'_>, vocabulary: &Vocabulary) -> Result<Self> {
        let config: SettingsFile = read(files, CONFIG)?;
        let map: SettingsFile = read(files, "special_tokens_map.json")?;
        let added_by_name: BTreeMap<String, u32> = read(files, "added_tokens.json")?;
        let config_path = files.path(CONFIG);
        Self::of(&config, &map, added_by_name, vocabulary).map_err(|problem| format_error(&config_path, problem))
    }

    /// CLIP's own, with `pad` after a text.
    pub(super) fn clip(pad: &str, vocabulary: &Vocabulary) -> Result<Self> {
        let token = |text: &str| Token(tokenizers::AddedToken::from(text, false).normalized(true));
        let [bos_token, eos_token, unk_token] = [BOS, EOS, EOS].map(|text| Some(token(text)));
        let map = SettingsFile { bos_token, eos_token, unk_token, pad_token: Some(pad.into()), ..Default::default() };
        Self::of(&SettingsFile::default(), &map, BTreeMap::new(), vocabulary)
            .map_err(|problem| format_error(&vocabulary.path, problem))
    }

    /// The settings that the files' contents mean together, or what is wrong in `config`.
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
    /// The special tokens with what they are for, in transformers' order.
    pub(super) fn named(&self) -> [(&'static str, &Token); 4] {
        [("begin", &self.bos), ("end", &self.eos), ("unknown", &self.unk), ("padding", &self.pad)]
    }
}

/// Reads a file, or gives the default where there is none.
fn read<T: DeserializeOwned + Default>(files: &Files<'_>, name: &str) -> Result<T> {
    if !files.has(name) {
        return Ok(T::default());
    }
    serde_json::from_str(&files.text(name)?)
        .map_err(|error| format_error(&files.path(name), format!("is not valid: {error}; download it again")))
}
