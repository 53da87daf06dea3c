//! The tokenizers of Qwen2 and Qwen3, which are built into the program.
//!
//! Their merges (Apache 2.0, see `qwen/NOTICE`) determine everything: the tokens are the 256 bytes and the results of the merges in
//! order, and special tokens follow. Single files of models with Qwen contain no tokenizer.

use std::path::Path;

use kiln_files::unpack;
use serde_json::{Value, json};
use tokenizers::AddedToken;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::build::{build, merges_of};
use super::{PAD, TOKENIZER_FILE, Tokenizer};
use crate::error::{Error, Result, format_error};

/// The name in errors, instead of a file.
const NAME: &str = "Qwen's built-in tokenizer";
const MERGES: &[u8] = include_bytes!("qwen/merges.txt.gz");

/// The generation of language models that a built-in tokenizer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Qwen2, Qwen2.5 and Qwen2.5-VL.
    Qwen2,
    /// Qwen3, whose tokenizer has tokens for tools' responses and for thoughts too.
    Qwen3,
}

impl Generation {
    /// The tokens that follow the merges, and whether they are special.
    const fn added(self) -> &'static [(&'static str, bool)] {
        match self {
            Self::Qwen2 => ADDED.split_at(QWEN2_ADDED).0,
            Self::Qwen3 => &ADDED,
        }
    }

    /// The number of tokens.
    pub const fn tokens(self) -> usize {
        MERGED + self.added().len()
    }
}

/// The number of tokens before the added ones: the bytes and the results of the merges.
const MERGED: usize = 151_643;
/// The number of Qwen2's added tokens, which are the first ones of Qwen3.
const QWEN2_ADDED: usize = 22;
/// The tokens of Qwen3 that follow the merges, and whether they are special.
const ADDED: [(&str, bool); 26] = [
    (PAD, true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|object_ref_start|>", true),
    ("<|object_ref_end|>", true),
    ("<|box_start|>", true),
    ("<|box_end|>", true),
    ("<|quad_start|>", true),
    ("<|quad_end|>", true),
    ("<|vision_start|>", true),
    ("<|vision_end|>", true),
    ("<|vision_pad|>", true),
    ("<|image_pad|>", true),
    ("<|video_pad|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<|fim_prefix|>", false),
    ("<|fim_middle|>", false),
    ("<|fim_suffix|>", false),
    ("<|fim_pad|>", false),
    ("<|repo_name|>", false),
    ("<|file_sep|>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

/// The chats of [`super::ChatTemplate`] as a template, for programs that read the folder.
const CHAT: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}";

impl Tokenizer {
    /// The tokenizer of a generation.
    ///
    /// # Errors
    /// None with the built-in table.
    pub fn built_in(generation: Generation) -> Result<Self> {
        let damaged = |error: &dyn std::fmt::Display| format_error(NAME.as_ref(), error.to_string());
        let text = String::from_utf8(unpack(MERGES).map_err(|error| damaged(&error))?);
        let text = text.map_err(|error| damaged(&error))?;
        let inner = inner(&text, generation.added()).map_err(|error| damaged(&error))?;
        Self::of(inner, Path::new(NAME))
    }

    /// The files of a folder with this tokenizer: names and contents, for programs that need them.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn files(&self) -> Result<[(&'static str, String); 2]> {
        let whole = self.inner.to_string(false).map_err(|error| Error::Tokenize(error.to_string()))?;
        let config = json!({
            "chat_template": CHAT,
            "eos_token": "<|im_end|>",
            "model_max_length": 131072,
            "pad_token": PAD,
            "tokenizer_class": "Qwen2Tokenizer",
        });
        Ok([(TOKENIZER_FILE, whole), ("tokenizer_config.json", format!("{config:#}\n"))])
    }

    /// Whether two tokenizers are equal.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let parts = |tokenizer: &Self| -> Option<[Value; 3]> {
            let mut whole = serde_json::to_value(&tokenizer.inner).ok()?;
            let model = &mut whole["model"];
            let [vocab, merges] = ["vocab", "merges"].map(|part| model[part].take());
            Some([vocab, merges, whole["added_tokens"].take()])
        };
        parts(self).is_some_and(|own| Some(own) == parts(other))
    }
}

fn inner(merges: &str, added: &[(&str, bool)]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let merges = merges_of(merges).ok_or("a merge is not a pair")?;
    // Letters represent bytes; their order is that of their tokens.
    let mut letters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    letters.sort_unstable();
    let tokens = letters.iter().map(char::to_string).chain(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let ids = tokens.zip(0..).collect();
    build(ids, merges, added.iter().map(|&(token, special)| AddedToken::from(token, special).normalized(false)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::ChatTemplate;
    use super::*;

    /// The ids are those of Qwen3's own files.
    #[test]
    fn the_built_in_tokenizer_is_qwens() {
        let tokenizer = Tokenizer::built_in(Generation::Qwen3).unwrap();
        let ids = |prompt: &str, template| tokenizer.encode(prompt, template, 512).unwrap().ids;
        let thinking = ids("Hello world", ChatTemplate::Thinking);
        assert_eq!(thinking, [151644, 872, 198, 9707, 1879, 151645, 198, 151644, 77091, 198]);
        let not = ids("Hello world", ChatTemplate::NotThinking);
        assert_eq!(not[thinking.len()..], [151667, 271, 151668, 271]);
        assert_eq!((tokenizer.pad(), tokenizer.vocab_size()), (151643, 151669));
    }

    /// The ids are those of Qwen2.5-VL's own files, in which thoughts are words.
    #[test]
    fn qwen2_has_no_tokens_for_thoughts() {
        let ids = |generation, prompt: &str| {
            let tokenizer = Tokenizer::built_in(generation).unwrap();
            assert_eq!(tokenizer.vocab_size(), generation.tokens());
            tokenizer.encode(prompt, ChatTemplate::Thinking, 512).unwrap().ids[3..].to_vec()
        };
        let end = [151645, 198, 151644, 77091, 198];
        let both = [Generation::Qwen2, Generation::Qwen3];
        let [two, three] = both.map(|generation| ids(generation, "<think> <tool_response>"));
        assert_eq!(three, [&[151667, 220, 151665][..], &end].concat());
        assert_eq!(two, [&[13708, 766, 29, 366, 14172, 9655, 29][..], &end].concat());
        let [two, three] = both.map(|generation| ids(generation, "a fox<|file_sep|> 狐狸"));
        assert_eq!((two.contains(&151664), &two), (true, &three));
        let [two, three] = both.map(|generation| Tokenizer::built_in(generation).unwrap());
        assert!(!two.is_same_as(&three));
    }

    #[test]
    fn written_files_are_the_same_tokenizer() {
        let tokenizer = Tokenizer::built_in(Generation::Qwen3).unwrap();
        let texts: BTreeMap<String, String> =
            tokenizer.files().unwrap().into_iter().map(|(name, text)| (name.into(), text)).collect();
        let read = Tokenizer::from_texts(Path::new("test"), &texts).unwrap();
        assert!(read.is_same_as(&tokenizer));
        let text = "A photo of a ﬁne red fox, 8k — “best”\u{a0}quality\n\n 狐狸 <think>";
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, ChatTemplate::Thinking, 512).unwrap();
        assert_eq!(ids(&read), ids(&tokenizer));
        let other =
            BTreeMap::from([(TOKENIZER_FILE.into(), texts[TOKENIZER_FILE].replace("<|box_end|>", "<|box_over|>"))]);
        assert!(!Tokenizer::from_texts(Path::new("test"), &other).unwrap().is_same_as(&tokenizer));
    }
}
