//! Invalid input: files that are not tokenizers or configurations, and chunks that do not fit an encoder. Every error
//! names the file and the problem.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_clip::{HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};
use kiln_testkit::fixtures;
use kiln_weights::{MapSource, Placement, Segment, load};

/// A copy of a fixture's tokenizer in which `edit` changes or removes the file `name`.
fn tokenizer_with(case: &str, model: &str, name: &str, edit: impl Fn(&str) -> Option<String>) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bad_input").join(case);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let source = fixtures(&format!("models/{model}/tokenizer"));
    for entry in std::fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    if let Some(text) = edit(&text) {
        std::fs::write(path, text).unwrap();
    }
    folder
}

#[track_caller]
fn refused(folder: &Path, expected: &[&str]) {
    let message = Tokenizer::open(folder).err().expect("the tokenizer was accepted").to_string();
    println!("{message}");
    let folder = folder.to_str().unwrap();
    for part in [&[folder][..], expected].concat() {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn missing_files_are_named() {
    refused(Path::new("no/such/folder"), &["no tokenizer found", "tokenizer.json", "vocab.json", "merges.txt"]);
    refused(&tokenizer_with("no_vocab", "sd1", "vocab.json", |_| None), &["vocab.json: "]);
    refused(&tokenizer_with("no_merges", "sd1", "merges.txt", |_| None), &["merges.txt: "]);
    let error = TextEncoderConfig::open(Path::new("no/such")).unwrap_err();
    assert!(error.to_string().starts_with("no/such/config.json: "), "{error}");
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    for (model, name) in [
        ("sd1", "vocab.json"),
        ("sd1", "tokenizer_config.json"),
        ("sd1", "special_tokens_map.json"),
        ("sd2v", "tokenizer.json"),
    ] {
        for eighths in 0..8 {
            let half = |text: &str| Some(text.chars().take(text.chars().count() * eighths / 8).collect());
            refused(&tokenizer_with("truncated", model, name, half), &[name]);
        }
    }
}

#[test]
fn bad_merges_are_refused() {
    let merges = |case: &str, line: &'static str| {
        tokenizer_with(case, "sd1", "merges.txt", move |text| Some(text.replacen("i n\n", line, 1)))
    };
    refused(&merges("one", "in\n"), &["merges.txt: line 2 is `in`, expected two tokens"]);
    refused(&merges("three", "i n g\n"), &["merges.txt: line 2 is `i n g`"]);
    refused(&merges("empty", "\n"), &["merges.txt: line 2 is ``"]);
    refused(&merges("unknown", "i blorp\n"), &["line 2 merges `i` and `blorp`, but `blorp` is not in the vocabulary"]);
    refused(
        &merges("product", "painting</w> painting</w>\n"),
        &["line 2 merges", "is not in the vocabulary of vocab.json"],
    );
    let in_json = |text: &str| Some(text.replacen(r#"["i","n"]"#, r#"["i","blorp"]"#, 1));
    refused(&tokenizer_with("json", "sd2v", "tokenizer.json", in_json), &["tokenizer.json: merge 1", "blorp"]);
}

#[test]
fn a_vocabulary_without_special_tokens_is_refused() {
    let without = |token: &'static str| move |text: &str| Some(text.replacen(token, "<other>", 1));
    let folder = tokenizer_with("begin", "sd1", "vocab.json", without("<|startoftext|>"));
    refused(&folder, &["vocab.json: has no token `<|startoftext|>`, the begin token"]);
    let folder = tokenizer_with("end", "sd1", "vocab.json", without("<|endoftext|>"));
    refused(&folder, &["vocab.json: has no token `<|endoftext|>`, the end token"]);
    let pad = |text: &str| Some(text.replace(r#""pad_token": "<|endoftext|>""#, r#""pad_token": "<pad>""#));
    let folder = tokenizer_with("pad", "sd1", "special_tokens_map.json", pad);
    refused(&folder, &["vocab.json: has no token `<pad>`, the padding token"]);
    let folder = tokenizer_with("elsewhere", "sd2v", "tokenizer.json", |text| {
        Some(text.replacen(r#"{"id":1213"#, r#"{"id":1300"#, 1))
    });
    refused(&folder, &["gives the added token `<|endoftext|>` the id 1213, but the other files give it 1300"]);
}

#[test]
fn absurd_ids_are_refused() {
    let huge = |text: &str| Some(text.replacen(r#""!": 0"#, r#""!": 4294967295"#, 1));
    refused(&tokenizer_with("huge", "sd1", "vocab.json", huge), &["vocab.json: has a token with id 4294967295"]);
    let negative = |text: &str| Some(text.replacen(r#""!": 0"#, r#""!": -1"#, 1));
    refused(&tokenizer_with("negative", "sd1", "vocab.json", negative), &["vocab.json: is not a vocabulary", "-1"]);
}

#[test]
fn another_kind_of_tokenizer_is_refused() {
    let edit = |from: &'static str, to: &'static str| move |text: &str| Some(text.replacen(from, to, 1));
    let folder = tokenizer_with("kind", "sd2v", "tokenizer.json", edit(r#""type":"BPE""#, r#""type":"WordPiece""#));
    refused(&folder, &["tokenizer.json: is a WordPiece tokenizer", "expected BPE"]);
    let folder = tokenizer_with("suffix", "sd2v", "tokenizer.json", edit(r#""</w>""#, "null"));
    refused(&folder, &["end-of-word suffix ``", "expected BPE with `</w>`"]);
    let folder = tokenizer_with("length", "sd1", "tokenizer_config.json", edit(": 77", ": 2"));
    refused(&folder, &["tokenizer_config.json: model_max_length is 2, expected at least 3"]);
}

#[test]
fn absurd_configurations_are_refused() {
    for (json, expected) in [
        ("", "is not valid"),
        (r#"{"hidden_size": 8"#, "is not valid"),
        (r#"{"hidden_size": -8}"#, "is not valid"),
        (r#"{"hidden_size": 0}"#, "hidden_size is 0, expected 1 to 65536"),
        (r#"{"vocab_size": 0}"#, "vocab_size is 0"),
        (r#"{"vocab_size": 4294967296}"#, "vocab_size is 4294967296"),
        (r#"{"intermediate_size": 0}"#, "intermediate_size is 0"),
        (r#"{"num_hidden_layers": 0}"#, "num_hidden_layers is 0"),
        (r#"{"num_hidden_layers": 1000000000}"#, "num_hidden_layers is 1000000000"),
        (r#"{"max_position_embeddings": 0}"#, "max_position_embeddings is 0"),
        (r#"{"num_attention_heads": 0}"#, "num_attention_heads is 0"),
        (r#"{"num_attention_heads": 7}"#, "num_attention_heads is 7, expected a divisor of hidden_size, 512"),
        (r#"{"layer_norm_eps": 0}"#, "layer_norm_eps is 0.0, expected more than 0"),
        (
            r#"{"hidden_act": "gelu_pytorch_tanh"}"#,
            "hidden_act is `gelu_pytorch_tanh`, expected `quick_gelu` or `gelu`",
        ),
        (r#"{"model_type": "t5"}"#, "model_type is `t5`, expected `clip_text_model`"),
        (
            r#"{"architectures": ["CLIPTextModelWithProjection"], "projection_dim": null}"#,
            "projection_dim is 0, expected 1 to 65536",
        ),
    ] {
        let message = TextEncoderConfig::from_json(json).unwrap_err().to_string();
        assert!(message.starts_with("text encoder configuration: ") && message.contains(expected), "{message}");
    }
    let built = TextEncoderConfig { num_attention_heads: 0, ..TextEncoderConfig::default() };
    assert!(TextEncoder::new(built).is_err());
}

fn tiny() -> TextEncoder {
    let config = r#"{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": 10, "max_position_embeddings": 5}"#;
    TextEncoder::new(TextEncoderConfig::from_json(config).unwrap()).unwrap()
}

#[test]
fn chunks_that_do_not_fit_are_refused() {
    let encoder = tiny();
    let params = encoder.segments().iter().flat_map(Segment::params);
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let weights: MapSource = params.map(|param| (param.key.clone(), zeros(&param.shape))).collect();
    load(encoder.segments(), &weights, &Placement::new(Device::Cpu, DType::F32)).unwrap();

    let last = HiddenLayer::LAST;
    let layer = |from_end| HiddenLayer { from_end, final_layer_norm: true };
    let cases: [(&[Vec<u32>], HiddenLayer, &str); 7] = [
        (&[], last, "no chunk of tokens was given"),
        (&[vec![]], last, "chunk 0 has 0 tokens, expected 1 to 5"),
        (&[vec![1; 6]], last, "chunk 0 has 6 tokens, expected 1 to 5"),
        (&[vec![1; 5], vec![1; 4]], last, "chunk 1 has 4 tokens, expected 5, like the first chunk"),
        (
            &[vec![1; 5], vec![1, 2, 10, 3, 4]],
            last,
            "chunk 1: token id 10 is outside of the text encoder's vocabulary of 10",
        ),
        (&[vec![1; 5]], layer(0), "layer 0 from the end was requested, expected 1 to 2"),
        (&[vec![1; 5]], layer(3), "layer 3 from the end was requested, expected 1 to 2"),
    ];
    for (chunks, layer, expected) in cases {
        let message = encoder.encode(chunks, layer, &Device::Cpu).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert!(encoder.encode(&[vec![9; 5]], last, &Device::Cpu).is_ok());
}

#[test]
fn an_encoder_without_weights_is_an_error() {
    let encoder = tiny();
    let message = encoder.encode(&[vec![1; 5]], HiddenLayer::LAST, &Device::Cpu).unwrap_err().to_string();
    assert!(
        message.starts_with("text_model.embeddings: segment `text_model.embeddings` has no weights yet"),
        "{message}"
    );
}
