//! Encoders of random weights: the bits of a text do not depend on others or on padding, and shapes are those of plans. Encoders of
//! transformers' weights: the hidden states are the same.

use candle_core::{DType, Device, Tensor};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_qwen::{ChatTemplate, Error, QwenConfig, QwenEncoder, Text, Tokenizer};
use kiln_testkit::{Fixture, deviation, shared_data};
use kiln_weights::{Placement, RandomSource, Segment, load, open_component};

const CONFIG: &str = r#"{"vocab_size": 60, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1000000}"#;

fn encoder(dtype: DType, hidden: &[usize]) -> QwenEncoder {
    let encoder = QwenEncoder::new(QwenConfig::from_json(CONFIG).unwrap(), hidden).unwrap();
    let source = RandomSource::new(encoder.segments(), 3);
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    encoder
}

fn text(first: u32, length: usize) -> Text {
    Text::whole((0..length as u32).map(|i| (first + 7 * i) % 60).collect())
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn layers_behind_the_last_hidden_state_are_not_declared() {
    let parameters = |hidden: &[usize]| QwenEncoder::new(QwenConfig::of_4b(), hidden).unwrap().segments().parameters();
    // transformers' Qwen3 4B without its last layer and its last normalization.
    assert_eq!(parameters(&[35]), 4_022_468_096 - (parameters(&[35]) - parameters(&[34])) - 2560);
    let small = encoder(DType::F32, &[1, 3]);
    assert_eq!((small.segments().len(), small.channels()), (4, 48));
    assert!(small.segments()[0].on_host() && !small.segments()[1].on_host());
    let keys: Vec<&str> = small.segments().iter().flat_map(Segment::params).map(|param| param.key.as_str()).collect();
    for key in
        ["model.embed_tokens.weight", "model.layers.2.self_attn.q_norm.weight", "model.layers.2.mlp.up_proj.weight"]
    {
        assert!(keys.contains(&key), "{key}");
    }
    assert_eq!(keys.len(), 1 + 3 * 11);
    let refused =
        |hidden: &[usize]| QwenEncoder::new(QwenConfig::from_json(CONFIG).unwrap(), hidden).err().unwrap().to_string();
    assert!(refused(&[5]).contains("`num_hidden_layers` is 5, expected more than 5"));
    assert!(refused(&[]).contains("`num_hidden_layers` is 5"));
}

#[test]
fn a_text_has_the_same_bits_alone_and_before_padding() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let encoder = encoder(dtype, &[2, 4]);
        let padded =
            |text: Text, total: usize| Text { ids: [text.ids, vec![0; total]].concat()[..total].to_vec(), ..text };
        let texts = [text(1, 9), text(2, 30), padded(text(3, 9), 40)];
        let together = encoder.encode(&texts, &Device::Cpu).unwrap();
        for (text, found) in texts.iter().zip(&together) {
            assert_eq!((found.dims(), found.dtype()), (&[1, text.ids.len(), 48][..], dtype));
            let alone = encoder.encode(std::slice::from_ref(text), &Device::Cpu).unwrap();
            assert_eq!(bits(&alone[0]), bits(found));
        }
        let real = encoder.encode(&[text(3, 9)], &Device::Cpu).unwrap();
        let first = together[2].narrow(1, 0, 9).unwrap().contiguous().unwrap();
        assert!(deviation(&first, &real[0]).error < 1e-5, "the text does not attend to padding");
    }
}

#[test]
fn a_token_does_not_see_those_behind_it() {
    let encoder = encoder(DType::F32, &[4]);
    let (short, long) = (text(1, 9), text(1, 12));
    let both = encoder.encode(&[short, long], &Device::Cpu).unwrap();
    let first = both[1].narrow(1, 0, 9).unwrap().contiguous().unwrap();
    assert!(deviation(&first, &both[0]).error < 1e-6);
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let encoder = encoder(DType::F16, &[1, 4]);
    let texts = [text(1, 12), Text { length: 5, ..text(2, 12) }];
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F16);
    let meta: Vec<MetaTensor> = encoder.forward(&texts, &[], &device).unwrap();
    let real = encoder.encode(&texts, &Device::Cpu).unwrap();
    for (meta, real) in meta.iter().zip(&real) {
        assert_eq!((meta.dims(), meta.dtype()), (real.dims(), real.dtype()));
    }
    assert!(device.take_flop().total() > 0.0);
}

#[test]
fn ids_that_do_not_fit_are_refused() {
    let encoder = encoder(DType::F32, &[1]);
    let refused = |text: Text| encoder.encode(&[text], &Device::Cpu).unwrap_err();
    assert!(matches!(refused(Text::whole(vec![1, 60])), Error::Token { id: 60, vocab_size: 60, .. }));
    assert!(refused(Text::whole(Vec::new())).to_string().contains("`ids` has shape [0], expected 1 to 32768 tokens"));
    assert!(matches!(refused(Text { length: 2, ..Text::whole(vec![1]) }), Error::Input { .. }));
}

/// Compares the hidden states of the prompt of `case` with those of transformers. Rows of padding follow up to `length`.
fn check(model: &str, case: &str, template: ChatTemplate, hidden: &[usize], length: Option<usize>) {
    const PROMPT: &str = "a small red fox, painting near the old castle";
    let folder = shared_data("families/models").join(model);
    let json = std::fs::read_to_string(folder.join("text_encoder/config.json")).unwrap();
    let encoder = QwenEncoder::new(QwenConfig::from_json(&json).unwrap(), hidden).unwrap();
    let source = open_component(&folder.join("text_encoder")).unwrap();
    load(encoder.segments(), source.as_ref(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let tokenizer = Tokenizer::open(&folder.join("tokenizer")).unwrap();
    let mut text = Text::whole(tokenizer.encode(PROMPT, template, 512).unwrap().ids);
    text.ids.resize(length.unwrap_or(text.length), tokenizer.pad());
    let found = encoder.encode(&[text], &Device::Cpu).unwrap().remove(0);
    let expected = Fixture::read(case, &shared_data("families").join(format!("{case}.safetensors")));
    let expected = expected.tensor("prompt_embeds");
    assert_eq!(found.dims(), expected.dims());
    let error = deviation(&found, &expected).error;
    assert!(error < 1e-5, "{model}: {error}");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_hidden_states_are_those_of_transformers() {
    check("zimage", "zimage-plain-96x64-3", ChatTemplate::Thinking, &[3], None);
    check("flux2_klein", "flux2_klein-plain-96x64-3", ChatTemplate::NotThinking, &[9, 18, 27], Some(512));
}
