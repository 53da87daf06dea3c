//! Tokenizers: templates, long prompts, and files that are damaged.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_qwen::{ChatTemplate, TOKENIZER_FILE, Tokenizer};
use kiln_testkit::shared_data;
use serde_json::{Value, json};

/// The letters of templates and prompts, and the special tokens.
fn small() -> Value {
    let letters = "abcdefghijklmnopqrstuvwxyz</>ĠĊ".chars();
    let mut vocab: BTreeMap<String, usize> = letters.enumerate().map(|(id, letter)| (letter.to_string(), id)).collect();
    vocab.insert("fo".into(), 31);
    vocab.insert("fox".into(), 32);
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [special(33, "<|endoftext|>"), special(34, "<|im_start|>"), special(35, "<|im_end|>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": [["f", "o"], ["fo", "x"]]},
    })
}

fn of(file: &Value) -> kiln_qwen::Result<Tokenizer> {
    let texts = BTreeMap::from([(TOKENIZER_FILE.to_string(), file.to_string())]);
    Tokenizer::from_texts(Path::new("model.safetensors"), &texts)
}

#[test]
fn a_prompt_is_in_its_template() {
    let tokenizer = of(&small()).unwrap();
    assert_eq!((tokenizer.pad(), tokenizer.vocab_size()), (33, 36));
    let found = tokenizer.encode("a fox", ChatTemplate::Thinking, 512).unwrap();
    let user = [20, 18, 4, 17]; // letter by letter
    let assistant = [0, 18, 18, 8, 18, 19, 0, 13, 19];
    let expected = [&[34][..], &user, &[30, 0, 29, 32, 35, 30, 34], &assistant, &[30]].concat();
    assert_eq!(
        (found.ids.as_slice(), found.used, found.cut),
        (&expected[..], 3, None),
        "a truncation in the file is not used"
    );
    let found = tokenizer.encode("", ChatTemplate::NotThinking, 512).unwrap();
    assert!(found.ids.len() > expected.len() && found.used == 0);
    let special = tokenizer.encode("<|im_end|>", ChatTemplate::Thinking, 512).unwrap();
    assert_eq!(special.ids[6], 35);
}

#[test]
fn a_long_prompt_loses_its_end_and_that_of_the_template() {
    let tokenizer = of(&small()).unwrap();
    let found = tokenizer.encode("fox fox fox", ChatTemplate::Thinking, 9).unwrap();
    assert_eq!((found.ids.len(), found.used, found.room), (9, 5, 3));
    assert_eq!(found.cut.as_deref(), Some("fox"));
    let found = tokenizer.encode("fox fox fox", ChatTemplate::Thinking, 12).unwrap();
    assert_eq!((found.ids.len(), found.cut), (12, None), "the template alone is cut");
}

#[test]
fn damaged_files_are_refused_by_name() {
    #[track_caller]
    fn refused(file: &Value, expected: &str) {
        let message = of(file).err().expect("the tokenizer was accepted").to_string();
        assert!(message.starts_with("model.safetensors/tokenizer.json: ") && message.contains(expected), "{message}");
    }
    let with = |pointer: &str, value: Value| {
        let mut file = small();
        *file.pointer_mut(pointer).unwrap() = value;
        file
    };
    refused(&json!([]), "is a tokenizer of type unknown, expected BPE");
    refused(&with("/model/type", json!("Unigram")), "is a tokenizer of type Unigram, expected BPE");
    refused(&with("/model/vocab", json!({})), "has 0 tokens");
    refused(&with("/model/vocab", json!({"x".repeat(5000): 0})), "has a token of 5000 bytes");
    refused(&with("/model/merges", json!([["q", "zz"]])), "cannot be used");
    refused(&with("/added_tokens", json!([])), "has no token `<|endoftext|>`");
    let message = Tokenizer::open(Path::new("no/such/folder")).err().unwrap().to_string();
    assert_eq!(message, "no/such/folder: no tokenizer found, looked for tokenizer.json, or vocab.json with merges.txt");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_ids_are_those_of_transformers() {
    let text = std::fs::read_to_string(shared_data("families/tokens.json")).unwrap();
    let all: BTreeMap<String, BTreeMap<String, Vec<u32>>> = serde_json::from_str(&text).unwrap();
    for (name, template) in
        [("zimage/tokenizer", ChatTemplate::Thinking), ("flux2_klein/tokenizer", ChatTemplate::NotThinking)]
    {
        let tokenizer = Tokenizer::open(&shared_data("families/models").join(name)).unwrap();
        for (text, expected) in &all[name] {
            assert_eq!(tokenizer.encode(text, template, 512).unwrap().ids, *expected, "{name}: {text:?}");
        }
    }
}
