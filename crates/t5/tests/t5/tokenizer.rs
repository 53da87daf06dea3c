//! Tokenizers from both kinds of files, and files that are damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_t5::{TOKENIZER_FILES, Tokenizer};
use kiln_testkit::shared_data;
use serde_json::{Value, json};

const ORIGIN: &str = "model.safetensors";

/// A small tokenizer of T5's kind.
fn small() -> Value {
    let special = |id: u32, text: &str| json!({"id": id, "content": text, "special": true});
    json!({
        "added_tokens": [special(0, "<pad>"), special(1, "</s>"), special(2, "<unk>"), special(11, "<extra_id_0>")],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        ]},
        "post_processor": null,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [
            ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["c", -4.0], ["t", -4.0],
            ["▁a", -2.5], ["▁cat", -5.0], ["at", -4.5], ["s", -3.5],
        ]},
    })
}

fn of(file: &Value) -> kiln_t5::Result<Tokenizer> {
    let texts = BTreeMap::from([("tokenizer.json".to_string(), file.to_string())]);
    Tokenizer::from_texts(Path::new(ORIGIN), &texts)
}

#[test]
fn texts_are_cut_into_the_pieces_with_the_largest_sum() {
    let tokenizer = of(&small()).unwrap();
    let ids = |text: &str| tokenizer.encode(text).unwrap();
    assert_eq!(ids("a cat"), [7, 8]);
    assert_eq!(ids("  a\n cats "), [7, 8, 10]);
    assert_eq!(ids("tat ca"), [3, 6, 9, 3, 5, 4]);
    assert_eq!(ids("A bunny a"), [3, 2, 3, 2, 7], "letters keep their case, and unknown ones are one token");
    assert_eq!(ids("ａ</s> <extra_id_0>"), [7, 1, 11]);
    assert!(ids("").is_empty() && ids(" ").is_empty());
    assert_eq!((tokenizer.end(), tokenizer.pad(), tokenizer.vocab_size()), (1, 0, 12));
}

#[test]
fn texts_are_framed_with_the_end_token_last() {
    let tokenizer = of(&small()).unwrap();
    assert_eq!(tokenizer.frame(&[], 4), [1, 0, 0, 0]);
    assert_eq!(tokenizer.frame(&[7, 8], 4), [7, 8, 1, 0]);
    assert_eq!(tokenizer.frame(&[7, 8, 9, 10], 4), [7, 8, 9, 1]);
    assert_eq!(tokenizer.frame(&[7], 1), [1]);
    assert_eq!(tokenizer.text_from("a cats, é a cat", 2).unwrap(), "s, é a cat");
    assert_eq!(tokenizer.text_from("a cat", 5).unwrap(), "");
}

#[track_caller]
fn refused(file: &Value, expected: &str) {
    let message = of(file).err().expect("the tokenizer was accepted").to_string();
    assert!(message.starts_with("model.safetensors/tokenizer.json: ") && message.contains(expected), "{message}");
}

#[test]
fn damaged_files_are_refused_by_name() {
    let with = |pointer: &str, value: Value| {
        let mut file = small();
        *file.pointer_mut(pointer).unwrap() = value;
        file
    };
    refused(&json!([]), "is a tokenizer of type unknown, expected Unigram");
    refused(&with("/model/type", json!("BPE")), "is a tokenizer of type BPE, expected Unigram");
    refused(&with("/model/vocab", json!([])), "has 0 pieces");
    refused(&with("/model/vocab/4", json!(["x".repeat(600), 0.0])), "has a piece of 600 bytes");
    refused(&with("/model/vocab/4", json!(["x"])), "is not a tokenizer of T5's type");
    refused(&with("/model/unk_id", json!(99)), "has no unknown token");
    refused(&with("/model/unk_id", Value::Null), "has no unknown token");
    refused(&with("/added_tokens/3/id", json!(30)), "gives the added token `<extra_id_0>` the id 30");
    refused(
        &with("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        "has a damaged `precompiled_charsmap`",
    );
    let message = Tokenizer::open(Path::new("no/such/folder")).err().unwrap().to_string();
    assert_eq!(message, "no/such/folder: no tokenizer found, looked for tokenizer.json or spiece.model");
}

/// A field of Protocol Buffers that has bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        all.push(length as u8 | 0x80);
        length >>= 7;
    }
    all.push(length as u8);
    all.extend(bytes);
    all
}

/// SentencePiece's model with the first `count` pieces of a `tokenizer.json`, and a table of normalizations.
fn sentencepiece(file: &Value, count: usize, table: &[u8]) -> Vec<u8> {
    let mut model = Vec::new();
    for (id, piece) in file["model"]["vocab"].as_array().unwrap().iter().take(count).enumerate() {
        let score = piece[1].as_f64().unwrap() as f32;
        let mut message = field(1, piece[0].as_str().unwrap().as_bytes());
        message.push(2 << 3 | 5);
        message.extend(score.to_le_bytes());
        let kind = match id {
            0 | 1 => 3,
            2 => 2,
            _ => 1,
        };
        message.extend([3 << 3, kind]);
        model.extend(field(1, &message));
    }
    model.extend(field(2, &[3 << 3, 1]));
    model.extend(field(3, &field(2, table)));
    model
}

fn folder(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("t5_tokenizer").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn a_sentencepiece_model_is_the_same_tokenizer() {
    let model = sentencepiece(&small(), 11, &[]);
    let config = br#"{"extra_ids": 1}"#;
    let path = folder("model", &[(TOKENIZER_FILES[1], &model), (TOKENIZER_FILES[2], config)]);
    let (found, expected) = (Tokenizer::open(&path).unwrap(), of(&small()).unwrap());
    for text in ["a cat", "tats A bunny", "", "a</s> <unk><extra_id_0> <pad>"] {
        assert_eq!(found.encode(text).unwrap(), expected.encode(text).unwrap(), "{text}");
    }
    let many = br#"{"extra_ids": 100000}"#;
    let path = folder("many", &[(TOKENIZER_FILES[1], &model), (TOKENIZER_FILES[2], many)]);
    assert!(Tokenizer::open(&path).err().unwrap().to_string().contains("`extra_ids` is 100000"));
}

#[test]
fn damaged_sentencepiece_models_are_refused_by_name() {
    let model = sentencepiece(&small(), 11, &[]);
    let first_piece = 2 + model[1] as usize;
    for length in 1..model.len() - 6 {
        let path = folder("cut", &[(TOKENIZER_FILES[1], &model[..length])]);
        // A file that ends between two pieces has a smaller vocabulary; without the special tokens it is refused.
        if let Err(error) = Tokenizer::open(&path) {
            assert!(error.to_string().contains("spiece.model: "), "{error}");
        } else {
            assert!(length > 3 * first_piece / 2, "{length}");
        }
    }
    let bpe = [model.clone(), field(2, &[3 << 3, 2])].concat();
    let path = folder("bpe", &[(TOKENIZER_FILES[1], &bpe)]);
    assert!(Tokenizer::open(&path).err().unwrap().to_string().contains("is not a Unigram model"));
    let table = sentencepiece(&small(), 11, &[9; 40]);
    let path = folder("table", &[(TOKENIZER_FILES[1], &table)]);
    assert!(Tokenizer::open(&path).err().unwrap().to_string().contains("`precompiled_charsmap`"));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_ids_are_those_of_transformers() {
    use base64::Engine;

    let text = std::fs::read_to_string(shared_data("families/tokens.json")).unwrap();
    let all: BTreeMap<String, BTreeMap<String, Vec<u32>>> = serde_json::from_str(&text).unwrap();
    let mut tokenizers = 0;
    for (name, texts) in all {
        let path = shared_data("families/models").join(&name);
        let Ok(json) = std::fs::read_to_string(path.join("tokenizer.json")) else { continue };
        let file: Value = serde_json::from_str(&json).unwrap();
        if file["model"]["type"] != "Unigram" {
            continue;
        }
        let kept = Tokenizer::from_texts(&path, &BTreeMap::from([("tokenizer.json".to_string(), json)])).unwrap();
        let table = file["normalizer"]["precompiled_charsmap"].as_str().unwrap();
        let table = base64::engine::general_purpose::STANDARD.decode(table).unwrap();
        let pieces = file["model"]["vocab"].as_array().unwrap().len() - 100;
        let model = folder("shared", &[(TOKENIZER_FILES[1], &sentencepiece(&file, pieces, &table))]);
        for tokenizer in [Tokenizer::open(&path).unwrap(), kept, Tokenizer::open(&model).unwrap()] {
            for (text, expected) in &texts {
                let ids = tokenizer.encode(text).unwrap();
                assert_eq!(tokenizer.frame(&ids, ids.len() + 1), *expected, "{name}: {text:?}");
            }
        }
        tokenizers += 1;
    }
    assert_eq!(tokenizers, 4);
}
