//! The formats in which tokenizers are stored, with the tiny vocabulary of the fixtures.

use std::collections::HashMap;
use std::path::PathBuf;

use kiln_clip::{ClipPadding, Tokenizer};
use kiln_testkit::{Fixture, fixtures, shared_data};
use serde_json::{Value, json};

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tokenizer_files").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn write(folder: &std::path::Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

fn fixture_text(name: &str) -> String {
    std::fs::read_to_string(fixtures("models/sd1/tokenizer").join(name)).unwrap()
}

/// The vocabulary of the fixtures in a `tokenizer.json`; `merge` writes a merge.
fn tokenizer_json(merge: impl Fn(&str, &str) -> Value) -> Value {
    let vocab: HashMap<String, u32> = serde_json::from_str(&fixture_text("vocab.json")).unwrap();
    let merges = fixture_text("merges.txt");
    let merges = merges.lines().skip(1).map(|line| line.split_once(' ').unwrap());
    json!({
        "added_tokens": [
            {"id": 1212, "content": "<|startoftext|>", "normalized": true, "special": true},
            {"id": 1213, "content": "<|endoftext|>", "normalized": false, "special": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        "post_processor": {
            "type": "RobertaProcessing", "sep": ["<|endoftext|>", 1213], "cls": ["<|startoftext|>", 1212],
        },
        "model": {
            "type": "BPE", "unk_token": "<|endoftext|>", "end_of_word_suffix": "</w>",
            "vocab": vocab, "merges": merges.map(|(a, b)| merge(a, b)).collect::<Vec<_>>(),
        },
    })
}

#[test]
fn all_formats_give_the_same_ids() {
    let reference = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let pairs = folder("pairs");
    write(&pairs, "tokenizer.json", &tokenizer_json(|a, b| json!([a, b])));
    let lines = folder("lines");
    write(&lines, "tokenizer.json", &tokenizer_json(|a, b| json!(format!("{a} {b}"))));
    let tricky: Vec<String> = Fixture::open("stages/text_sd1.safetensors").note("tricky");
    for folder in [pairs, lines] {
        let tokenizer = Tokenizer::open(&folder).unwrap();
        assert_eq!(tokenizer.empty_chunk(), reference.empty_chunk());
        for text in &tricky {
            assert_eq!(tokenizer.encode(text).unwrap(), reference.encode(text).unwrap(), "{text:?}");
        }
    }
}

#[test]
fn a_vocabulary_alone_has_the_defaults() {
    let folder = folder("alone");
    std::fs::write(folder.join("vocab.json"), fixture_text("vocab.json")).unwrap();
    std::fs::write(folder.join("merges.txt"), fixture_text("merges.txt").replace('\n', "\r\n")).unwrap();
    let tokenizer = Tokenizer::open(&folder).unwrap();
    assert_eq!([tokenizer.bos(), tokenizer.eos(), tokenizer.pad()], [1212, 1213, 1213]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.max_length()), (1214, 77));
    assert_eq!(tokenizer.encode("A Red APPLE").unwrap(), tokenizer.encode("a red apple").unwrap());
}

#[test]
fn settings_are_respected() {
    let folder = folder("settings");
    std::fs::write(folder.join("vocab.json"), fixture_text("vocab.json")).unwrap();
    std::fs::write(folder.join("merges.txt"), fixture_text("merges.txt")).unwrap();
    let config = json!({"do_lower_case": false, "model_max_length": 1e30, "pad_token": "#", "bos_token": null});
    write(&folder, "tokenizer_config.json", &config);
    let tokenizer = Tokenizer::open(&folder).unwrap();
    assert_ne!(tokenizer.encode("APPLE").unwrap(), tokenizer.encode("apple").unwrap());
    assert_eq!((tokenizer.pad(), tokenizer.max_length()), (2, 77));

    // special_tokens_map.json takes precedence, and a short length makes short chunks.
    write(&folder, "special_tokens_map.json", &json!({"pad_token": {"content": "!", "lstrip": false}}));
    write(&folder, "tokenizer_config.json", &json!({"model_max_length": 5, "pad_token": "#"}));
    let tokenizer = Tokenizer::open(&folder).unwrap();
    let ids = tokenizer.encode("a a a a").unwrap();
    let expected = [vec![1212, ids[0], ids[1], ids[2], 1213], vec![1212, ids[3], 1213, 0, 0]];
    assert_eq!(tokenizer.chunks("a a a a").unwrap(), expected);
}

/// The ids are from transformers 5.23 with the same files.
#[test]
fn added_tokens_are_found_in_texts() {
    let folder = folder("added");
    for name in ["vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"] {
        std::fs::write(folder.join(name), fixture_text(name)).unwrap();
    }
    write(&folder, "added_tokens.json", &json!({"<cat toy>": 1214}));
    let tokenizer = Tokenizer::open(&folder).unwrap();
    assert_eq!(tokenizer.vocab_size(), 1215);
    let text = "A <Cat Toy> and <cat toy> <|ENDOFTEXT|> <|STARTOFTEXT|>";
    let expected = [320, 1214, 537, 1214, 27, 347, 524, 639, 69, 600, 1052, 91, 285, 1212];
    assert_eq!(tokenizer.encode(text).unwrap(), expected);
}

#[test]
fn a_long_text_is_never_cut() {
    let tokenizer = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let text = "a ".repeat(10_000) + &"b".repeat(20_000);
    let ids = tokenizer.encode(&text).unwrap();
    assert!(ids.len() > 10_000);
    let chunks = tokenizer.chunks(&text).unwrap();
    assert_eq!(chunks.len(), ids.len().div_ceil(75));
    assert!(chunks.iter().all(|chunk| chunk.len() == 77));
}

/// Strings for which tokenizers differ.
const TRICKY: [&str; 8] = [
    "a red apple, (very:1.2) shiny!",
    "  Crème brûlée\n\tÜBER   caf\u{e9} cafe\u{301}",
    "2024 isn't 1999's they'll we'd",
    "日本の山 🏔️ 👩‍🚀",
    "<|endoftext|> <|startoftext|> <|ENDOFTEXT|> a<|endoftext|>b!",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "!!! ??? ... ---- #hash_tag @at & \"quoted\"",
    "",
];

#[test]
fn the_built_in_tokenizer_matches_clip() {
    let tokenizer = Tokenizer::clip(ClipPadding::End).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.max_length()), (49408, 77));
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad()), (49406, 49407, 49407));
    // transformers.CLIPTokenizer.from_pretrained("openai/clip-vit-large-patch14")("a photo of a cat").input_ids
    assert_eq!(tokenizer.chunks("a photo of a cat").unwrap()[0][..7], [49406, 320, 1125, 539, 320, 2368, 49407]);
    let padded = Tokenizer::clip(ClipPadding::Zero).unwrap();
    assert_eq!((padded.pad(), padded.eos()), (0, 49407));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_official_tokenizer_is_the_built_in_one() {
    let tokenizer = Tokenizer::clip(ClipPadding::End).unwrap();
    let official = Tokenizer::open(&shared_data("tokenizer")).unwrap();
    for text in TRICKY {
        assert_eq!(tokenizer.chunks(text).unwrap(), official.chunks(text).unwrap(), "{text}");
    }
}

/// Texts are parsed like files, and CLIP's own files result in CLIP's own tokenizer. `kiln convert` relies on this.
#[test]
fn a_tokenizer_can_be_read_from_texts() {
    for padding in [ClipPadding::End, ClipPadding::Zero] {
        let texts = Tokenizer::clip_files(padding).unwrap().map(|(name, text)| (name.to_string(), text));
        let read = Tokenizer::from_texts("a.safetensors".as_ref(), &texts.into_iter().collect()).unwrap();
        let [end, zero] = [ClipPadding::End, ClipPadding::Zero].map(|padding| Tokenizer::clip(padding).unwrap());
        assert_eq!(read.is_same_as(&end), padding == ClipPadding::End);
        assert_eq!(read.is_same_as(&zero), padding == ClipPadding::Zero);
    }
    let names = ["vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"];
    let texts = names.map(|name| (name.to_string(), fixture_text(name))).into_iter().collect();
    let read = Tokenizer::from_texts("a.safetensors".as_ref(), &texts).unwrap();
    assert!(read.is_same_as(&Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap()));
    assert!(!read.is_same_as(&Tokenizer::clip(ClipPadding::End).unwrap()));
    let missing = Tokenizer::from_texts("a.safetensors".as_ref(), &Default::default()).err().unwrap().to_string();
    assert!(missing.starts_with("a.safetensors: no tokenizer found"), "{missing}");
}
