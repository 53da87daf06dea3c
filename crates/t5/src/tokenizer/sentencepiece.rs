//! A Unigram tokenizer in `spiece.model`: SentencePiece's `ModelProto` (`sentencepiece_model.proto`), of which few fields are read.

use serde::Deserialize;
use tokenizers::AddedToken;
use tokenizers::normalizers::Precompiled;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

use super::charsmap;
use super::files::Files;
use super::protobuf::{Fields, Value};
use super::vocabulary::{SENTENCEPIECE, Vocabulary};
use crate::error::{Result, format_error};

/// The file with the number of sentinels.
const CONFIG: &str = "tokenizer_config.json";
/// T5's sentinels `<extra_id_0>` and so on, which follow the pieces in descending order.
pub(super) const SENTINELS: u32 = 100;
const MAX_SENTINELS: u32 = 4096;
/// The mark of a space at the beginning of a word.
const SPACE: char = '▁';
/// `TrainerSpec.ModelType.UNIGRAM`.
const UNIGRAM: u64 = 1;

/// `ModelProto.SentencePiece.Type`.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;

#[derive(Default, Deserialize)]
struct Config {
    extra_ids: Option<u32>,
}

/// The fields of a model that are read.
#[derive(Default)]
struct Model<'a> {
    pieces: Vec<(String, f64)>,
    kinds: Vec<u64>,
    model_type: Option<u64>,
    charsmap: &'a [u8],
}

impl Vocabulary {
    /// Reads `spiece.model`, and the number of sentinels in `tokenizer_config.json` if it is there.
    pub(super) fn from_sentencepiece(files: &Files<'_>) -> Result<Self> {
        let path = files.path(SENTENCEPIECE);
        let bytes = files.bytes(SENTENCEPIECE)?;
        let sentinels = sentinels(files)?;
        Self::of_model(&bytes, sentinels, &path).map_err(|problem| format_error(&path, problem))
    }

    /// The vocabulary of the contents of `spiece.model`, or the problem that they have.
    pub(super) fn of_model(bytes: &[u8], sentinels: u32, path: &std::path::Path) -> std::result::Result<Self, String> {
        let Model { mut pieces, kinds, model_type, charsmap } =
            model(bytes).ok_or("is not a SentencePiece model, or it is cut off; download it again")?;
        if model_type.unwrap_or(UNIGRAM) != UNIGRAM {
            return Err("is not a Unigram model, T5's type".into());
        }
        let normalizer = match charsmap {
            [] => None,
            table => {
                charsmap::check(table)?;
                Some(Precompiled::from(table).map_err(|error| error.to_string())?.into())
            }
        };
        let special = |text: &str| AddedToken::from(text, true).normalized(false);
        let is_special = |(_, kind): &(usize, &u64)| [UNKNOWN, CONTROL].contains(*kind);
        let own = kinds.iter().enumerate().filter(is_special);
        let mut added: Vec<(u32, AddedToken)> =
            own.filter_map(|(id, _)| Some((id as u32, special(&pieces.get(id)?.0)))).collect();
        for i in (0..sentinels).rev() {
            let name = format!("<extra_id_{i}>");
            added.push((pieces.len() as u32, special(&name)));
            pieces.push((name, 0.0));
        }
        let metaspace = Metaspace::new(SPACE, PrependScheme::Always, true);
        Ok(Self {
            path: path.to_path_buf(),
            pieces,
            unknown: kinds.iter().position(|kind| *kind == UNKNOWN),
            byte_fallback: false,
            normalizer,
            pre_tokenizer: Some(Sequence::new(vec![WhitespaceSplit.into(), metaspace.into()]).into()),
            added,
        })
    }
}

/// The number of sentinels.
fn sentinels(files: &Files<'_>) -> Result<u32> {
    if !files.has(CONFIG) {
        return Ok(SENTINELS);
    }
    let path = files.path(CONFIG);
    let config: Config = serde_json::from_str(&files.text(CONFIG)?)
        .map_err(|error| format_error(&path, format!("is not valid: {error}; download it again")))?;
    match config.extra_ids.unwrap_or(SENTINELS) {
        found if found <= MAX_SENTINELS => Ok(found),
        found => Err(format_error(&path, format!("`extra_ids` is {found}, expected at most {MAX_SENTINELS}"))),
    }
}

/// Reads a `ModelProto`; `None` if it is damaged.
fn model(bytes: &[u8]) -> Option<Model<'_>> {
    let mut model = Model::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, Value::Bytes(piece)) => {
                let (text, score, kind) = self::piece(piece)?;
                model.pieces.push((text, score));
                model.kinds.push(kind);
            }
            (2, Value::Bytes(trainer)) => {
                for field in Fields::new(trainer) {
                    if let (3, Value::Integer(kind)) = field? {
                        model.model_type = Some(kind);
                    }
                }
            }
            (3, Value::Bytes(normalizer)) => {
                for field in Fields::new(normalizer) {
                    if let (2, Value::Bytes(table)) = field? {
                        model.charsmap = table;
                    }
                }
            }
            _ => {}
        }
    }
    Some(model)
}

/// Text, score and type of a `SentencePiece`.
fn piece(bytes: &[u8]) -> Option<(String, f64, u64)> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, NORMAL);
    for field in Fields::new(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => text = std::str::from_utf8(bytes).ok()?.into(),
            (2, Value::Fixed(bits)) => score = f64::from(f32::from_bits(bits)),
            (3, Value::Integer(found)) => kind = found,
            _ => {}
        }
    }
    Some((text, score, kind))
}
