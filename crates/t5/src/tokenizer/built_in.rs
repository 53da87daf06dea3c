//! T5's own tokenizer, which is built into the program.
//!
//! The official models with T5 have the one of Google's `t5-v1_1-xxl` (Apache 2.0, see `t5/NOTICE`), and their single files contain
//! none. It is `spiece.model`, compressed to half of its size.

use std::path::Path;

use kiln_files::unpack;
use serde_json::{Value, json};
use tokenizers::processors::template::TemplateProcessing;

use super::sentencepiece::SENTINELS;
use super::vocabulary::{JSON, Vocabulary};
use super::{END, Tokenizer};
use crate::error::{Result, format_error};

/// The name in errors, instead of a file.
const NAME: &str = "T5's built-in tokenizer";
const MODEL: &[u8] = include_bytes!("t5/spiece.model.gz");

impl Tokenizer {
    /// T5's own tokenizer.
    ///
    /// # Errors
    /// None with the built-in table.
    pub fn built_in() -> Result<Self> {
        let damaged = |problem: String| format_error(NAME.as_ref(), problem);
        let model = unpack(MODEL).map_err(|error| damaged(error.to_string()))?;
        Self::of(Vocabulary::of_model(&model, SENTINELS, Path::new(NAME)).map_err(damaged)?)
    }

    /// The files of a folder with this tokenizer: names and contents, for programs that need them.
    ///
    /// # Errors
    /// [`crate::Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn files(&self) -> Result<[(&'static str, String); 2]> {
        let failed = |error: String| crate::Error::Tokenize(error);
        let end = TemplateProcessing::builder()
            .try_single(format!("$A {END}"))
            .map_err(failed)?
            .special_tokens(vec![(END, self.end)])
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut inner = self.inner.clone();
        inner.with_post_processor(Some(end));
        let whole = inner.to_string(false).map_err(|error| failed(error.to_string()))?;
        let config = json!({
            "eos_token": END,
            "extra_ids": SENTINELS,
            "model_max_length": 512,
            "pad_token": super::PAD,
            "tokenizer_class": "T5Tokenizer",
            "unk_token": "<unk>",
        });
        Ok([(JSON, whole), ("tokenizer_config.json", format!("{config:#}\n"))])
    }

    /// Whether two tokenizers are equal.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let parts = |tokenizer: &Self| -> Option<[Value; 4]> {
            let mut whole = serde_json::to_value(&tokenizer.inner).ok()?;
            Some(["model", "normalizer", "pre_tokenizer", "added_tokens"].map(|part| whole[part].take()))
        };
        parts(self).is_some_and(|own| Some(own) == parts(other))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The ids are those of transformers' documentation of T5, and of `t5-v1_1-xxl`.
    #[test]
    fn the_built_in_tokenizer_is_t5s() {
        let tokenizer = Tokenizer::built_in().unwrap();
        assert_eq!(tokenizer.encode("Hello, my dog is cute").unwrap(), [8774, 6, 82, 1782, 19, 5295]);
        assert_eq!(tokenizer.encode("").unwrap(), [] as [u32; 0]);
        assert_eq!(tokenizer.encode("  the\n house  ").unwrap(), tokenizer.encode("the house").unwrap());
        assert_eq!(tokenizer.encode("<extra_id_0>").unwrap(), [32099]);
        assert_eq!((tokenizer.end(), tokenizer.pad(), tokenizer.vocab_size()), (1, 0, 32100));
    }

    #[test]
    fn written_files_are_the_same_tokenizer() {
        let tokenizer = Tokenizer::built_in().unwrap();
        let texts: BTreeMap<String, String> =
            tokenizer.files().unwrap().into_iter().map(|(name, text)| (name.into(), text)).collect();
        let read = Tokenizer::from_texts(Path::new("test"), &texts).unwrap();
        assert!(read.is_same_as(&tokenizer));
        let text = "A photo of a ﬁne red fox, 8k — “best”\u{a0}quality";
        assert_eq!(read.encode(text).unwrap(), tokenizer.encode(text).unwrap());
        let other = texts[JSON].replace("\"▁house\"", "\"▁hosue\"");
        assert!(other != texts[JSON]);
        let other = BTreeMap::from([(JSON.to_string(), other)]);
        assert!(!Tokenizer::from_texts(Path::new("test"), &other).unwrap().is_same_as(&tokenizer));
    }
}
