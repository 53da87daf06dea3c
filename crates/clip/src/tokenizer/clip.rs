//! CLIP's own vocabulary, which is built into the program.
//!
//! Its merges (OpenAI's `bpe_simple_vocab_16e6`, MIT, see `clip/LICENSE`) determine everything: the tokens are the 256
//! bytes, the same at the end of a word, the results of the merges in order, and two special tokens. They take half a
//! megabyte. Compressed they would take a fifth of that, at the cost of a decompressor and of time at every start.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::settings::{BOS, EOS};
use super::vocabulary::{END_OF_WORD, Vocabulary};
use crate::error::{Result, format_error};

/// The name in errors, instead of a file.
const NAME: &str = "CLIP's built-in tokenizer";
const MERGES: &str = include_str!("clip/merges.txt");

/// The token that fills a chunk after its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipPadding {
    /// The end token: OpenAI's encoders, used by Stable Diffusion 1 and as the first one of SDXL.
    End,
    /// Token 0, `!`: OpenCLIP's encoders, used by Stable Diffusion 2 and as the second one of SDXL.
    Zero,
}

impl ClipPadding {
    pub(super) fn token(self) -> &'static str {
        match self {
            Self::End => EOS,
            Self::Zero => "!",
        }
    }
}

impl super::Tokenizer {
    /// The files of [`Self::clip`]: names and contents, for programs that need them in a folder.
    ///
    /// # Errors
    /// None with the built-in tables.
    pub fn clip_files(padding: ClipPadding) -> Result<[(&'static str, String); 4]> {
        let ids: BTreeMap<u32, String> = Vocabulary::clip()?.ids.into_iter().map(|(token, id)| (id, token)).collect();
        let row = |(id, token): (&u32, &String)| format!("{}:{id}", Value::from(token.as_str()));
        let vocabulary = format!("{{{}}}", ids.iter().map(row).collect::<Vec<_>>().join(","));
        let token = |text: &str| json!({"content": text, "lstrip": false, "normalized": true, "rstrip": false, "single_word": false});
        let special = json!({
            "bos_token": token(BOS),
            "eos_token": token(EOS),
            "pad_token": padding.token(),
            "unk_token": token(EOS),
        });
        let config = json!({"do_lower_case": true, "model_max_length": 77, "tokenizer_class": "CLIPTokenizer"});
        Ok([
            ("vocab.json", vocabulary),
            ("merges.txt", MERGES.to_string()),
            ("special_tokens_map.json", format!("{special:#}\n")),
            ("tokenizer_config.json", format!("{config:#}\n")),
        ])
    }
}

impl Vocabulary {
    /// CLIP's own vocabulary.
    pub(super) fn clip() -> Result<Self> {
        let merges: Option<Vec<(String, String)>> = MERGES
            .lines()
            .filter(|line| !line.starts_with("#version"))
            .map(|line| line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())))
            .collect();
        let merges = merges.ok_or_else(|| format_error(NAME.as_ref(), "has a merge that is not a pair"))?;
        let bytes = byte_letters();
        let ends = bytes.iter().map(|letter| format!("{letter}{END_OF_WORD}"));
        let tokens = bytes.iter().map(char::to_string).chain(ends);
        let tokens = tokens.chain(merges.iter().map(|(a, b)| format!("{a}{b}")));
        let tokens = tokens.chain([BOS.to_string(), EOS.to_string()]);
        let ids: HashMap<String, u32> = tokens.zip(0..).collect();
        Ok(Self { path: NAME.into(), ids, merges, extras: None })
    }
}

/// The letters that represent bytes in a byte-pair encoding, in the order of their tokens: bytes that are printable in
/// Latin-1 represent themselves, the others are letters from 256 on.
fn byte_letters() -> Vec<char> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let others = (0..=255u8).filter(|byte| !printable(byte)).count() as u32;
    let letters = (256..256 + others).filter_map(char::from_u32);
    (0..=255u8).filter(printable).map(char::from).chain(letters).collect()
}
