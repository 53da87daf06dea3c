//! Building a tokenizer of its tokens and merges, as transformers' `Qwen2Tokenizer` does.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// Where a text is cut before its pieces are merged.
const PIECES: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pairs of tokens to merge, in order of priority.
pub(super) type Merges = Vec<(String, String)>;

/// The pairs of the text of a `merges.txt`. `None` if a line is no pair.
pub(super) fn merges_of(text: &str) -> Option<Merges> {
    let lines = text.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    lines.map(|line| line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string()))).collect()
}

/// The tokenizer of tokens with their ids, merges, and added tokens in the order of their ids.
pub(super) fn build(
    ids: Vocab,
    merges: Merges,
    added: impl IntoIterator<Item = AddedToken>,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::builder().vocab_and_merges(ids, merges).build()?);
    tokenizer.with_normalizer(Some(NFC))?;
    let pieces = Split::new(SplitPattern::Regex(PIECES.into()), SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![pieces.into(), bytes.into()])));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    for token in added {
        match token.special {
            true => tokenizer.add_special_tokens([token])?,
            false => tokenizer.add_tokens([token])?,
        };
    }
    Ok(tokenizer)
}
