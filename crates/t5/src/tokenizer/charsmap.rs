//! SentencePiece's table of normalizations (`precompiled_charsmap`), checked before the `tokenizers` crate walks it.
//!
//! The table is the number of bytes of a trie, the trie as a double array (Darts), and texts that end with zero bytes. A number
//! of the trie is a node or a value. A node holds its letter, the distance to its children and whether it has a value, which is
//! then the first child; a value is the place of a text. The crate follows numbers without looking whether they lead outside.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The type of such a normalizer in `tokenizer.json`, and its key.
const PRECOMPILED: &str = "Precompiled";
const CHARSMAP: &str = "precompiled_charsmap";

/// A letter is a byte, so that a node's children are within so many numbers.
const LETTERS: usize = 256;
/// The bit of a value, which a node never has.
const VALUE: u32 = 1 << 31;

/// Checks the tables of a `normalizer` in `tokenizer.json`, which may be a sequence.
pub(super) fn check_json(normalizer: &Value) -> Result<(), String> {
    if normalizer["type"] == PRECOMPILED {
        let text = normalizer[CHARSMAP].as_str().unwrap_or_default();
        let bytes = STANDARD.decode(text).map_err(|error| format!("has a `{CHARSMAP}` that is not base64: {error}"))?;
        return check(&bytes);
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_json)
}

/// Checks that no walk through a table leaves it.
pub(super) fn check(table: &[u8]) -> Result<(), String> {
    let damaged = |what: &str| Err(format!("has a damaged `{CHARSMAP}`: {what}; download it again"));
    let Some((size, rest)) = table.split_first_chunk::<4>() else { return damaged("it is empty") };
    let Some((trie, texts)) = rest.split_at_checked(u32::from_le_bytes(*size) as usize) else {
        return damaged("its trie is cut off");
    };
    let Ok(texts) = std::str::from_utf8(texts) else { return damaged("its texts are not UTF-8") };
    let (numbers, remainder) = trie.as_chunks::<4>();
    if numbers.is_empty() || !numbers.len().is_multiple_of(LETTERS) || !remainder.is_empty() {
        return damaged("its trie has no whole blocks");
    }
    for (place, number) in numbers.iter().map(|number| u32::from_le_bytes(*number)).enumerate() {
        if number & VALUE != 0 {
            continue;
        }
        let distance = (number as usize >> 10) << ((number & (1 << 9)) >> 6);
        let Some(child) = numbers.get(place ^ distance) else { return damaged("its trie leads outside") };
        let value = (u32::from_le_bytes(*child) & !VALUE) as usize;
        if number & (1 << 8) != 0 && !texts.is_char_boundary(value) {
            return damaged("its trie leads outside of its texts");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::normalizers::Precompiled;

    use super::*;

    /// A table that replaces `a` by `texts`.
    fn table(root: u32, node: u32, value: u32, texts: &[u8]) -> Vec<u8> {
        let mut numbers = vec![0u32; 2 * LETTERS];
        numbers[0] = root;
        numbers[LETTERS ^ usize::from(b'a')] = node;
        let leaf = LETTERS ^ usize::from(b'a') ^ 2;
        numbers[leaf] = VALUE | value;
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        let size = (8 * LETTERS as u32).to_le_bytes();
        size.into_iter().chain(numbers).chain(texts.iter().copied()).collect()
    }

    const ROOT: u32 = (LETTERS as u32) << 10;
    const NODE: u32 = 2 << 10 | 1 << 8 | b'a' as u32;

    #[test]
    fn a_sound_table_is_accepted_and_normalizes() {
        let good = table(ROOT, NODE, 0, "é\0".as_bytes());
        check(&good).unwrap();
        assert_eq!(Precompiled::from(&good).unwrap().normalize_string("ba"), "bé");
        let text = STANDARD.encode(&good);
        let nested = |text: &str| json!({"type": "Sequence", "normalizers": [{"type": PRECOMPILED, CHARSMAP: text}]});
        check_json(&nested(&text)).unwrap();
        assert!(check_json(&nested(&text[..64])).unwrap_err().contains("its trie is cut off"));
        assert!(check_json(&nested("?")).unwrap_err().contains("not base64"));
        check_json(&json!({"type": "NFKC"})).unwrap();
    }

    #[test]
    fn tables_that_lead_outside_are_refused() {
        for (bad, expected) in [
            (Vec::new(), "empty"),
            (vec![255; 64], "cut off"),
            (vec![4, 0, 0, 0, 0, 0, 0, 0], "no whole blocks"),
            (table(ROOT << 2, NODE, 0, b"x\0"), "leads outside"),
            (table(ROOT, NODE | 1 << 30, 0, b"x\0"), "leads outside"),
            (table(ROOT, NODE, 9, b"x\0"), "outside of its texts"),
            (table(ROOT, NODE, 1, "é\0".as_bytes()), "outside of its texts"),
            (table(ROOT, NODE, 0, &[255]), "not UTF-8"),
        ] {
            let message = check(&bad).unwrap_err();
            assert!(message.contains(expected), "{message}, expected {expected}");
        }
    }
}
