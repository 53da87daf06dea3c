//! Stages with random weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_clip::{ClipEncoder, ClipPadding, TextEncoder, TextEncoderConfig};
use kiln_network::TextWidths;
use kiln_network::text::{
    CONTEXT, Fill, LENGTH as LENGTH_OF_TEXT, NoWords, POOLED, PromptText, Result, Runs, TextDevice, TextStage,
    TextTensors, Tokens,
};
use kiln_nn::MetaDevice;
use kiln_nn::ops::Target;
use kiln_prompt::{ChunkCut, Emphasis, TextOptions};
use kiln_t5::{T5Config, T5Encoder, Tokenizer};
use kiln_weights::{Placement, RandomSource, Segments, load};
use serde_json::json;

use super::{ClipT5Text, MaskedT5Text, T5Part};

const WIDTHS: TextWidths = TextWidths { context: Some(24), pooled: Some(20) };
/// T5's tokens.
const LENGTH: usize = 12;

/// Runs on the calling thread, and records what was asked.
#[derive(Default)]
struct OnCpu {
    entered: Vec<usize>,
}

impl Runs for OnCpu {
    fn enter(&mut self, network: usize) -> Result<TextDevice> {
        self.entered.push(network);
        Ok(Device::Cpu.into())
    }

    fn proceed(&mut self, _text: usize, _texts: usize) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, _network: usize, work: &mut (dyn FnMut() + Send)) {
        work();
    }

    fn leave(&mut self, _network: usize) {}
}

fn fill(segments: &Segments, seed: u64) {
    load(segments, &RandomSource::new(segments, seed), &Placement::new(Device::Cpu, DType::F32)).unwrap();
}

fn clip(hidden_size: usize, class: &str, padding: ClipPadding) -> ClipEncoder {
    let config = TextEncoderConfig {
        hidden_size,
        intermediate_size: 2 * hidden_size,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        projection_dim: Some(hidden_size),
        architectures: vec![class.into()],
        ..TextEncoderConfig::default()
    };
    let encoder = TextEncoder::new(config).unwrap();
    fill(encoder.segments(), hidden_size as u64);
    ClipEncoder { encoder, tokenizer: Some(kiln_clip::Tokenizer::clip(padding).unwrap()), network: None }
}

fn l() -> ClipEncoder {
    clip(8, "CLIPTextModelWithProjection", ClipPadding::End)
}

fn g() -> ClipEncoder {
    clip(12, "CLIPTextModelWithProjection", ClipPadding::Zero)
}

fn t5() -> T5Part {
    let config =
        T5Config { vocab_size: 40, d_model: 24, d_kv: 8, d_ff: 32, num_layers: 2, num_heads: 2, ..T5Config::xxl() };
    let encoder = T5Encoder::new(config).unwrap();
    fill(encoder.segments(), 5);
    let letters = ('a'..='z').map(|letter| json!([letter.to_string(), -3.0]));
    let special = [json!(["<pad>", 0.0]), json!(["</s>", 0.0]), json!(["<unk>", 0.0]), json!(["▁", -2.0])];
    let file = json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        ]},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": special.into_iter().chain(letters).collect::<Vec<_>>()},
    });
    let texts = BTreeMap::from([("tokenizer.json".to_string(), file.to_string())]);
    let tokenizer = Tokenizer::from_texts(Path::new("test"), &texts).unwrap();
    T5Part { encoder, tokenizer: Some(tokenizer), network: None }
}

fn sd3() -> ClipT5Text {
    ClipT5Text::sd3([Some(l()), Some(g())], Some(t5()), WIDTHS, LENGTH)
}

fn flux() -> ClipT5Text {
    let widths = TextWidths { pooled: Some(8), ..WIDTHS };
    ClipT5Text::flux(Some(clip(8, "CLIPTextModel", ClipPadding::End)), Some(t5()), widths, LENGTH)
}

fn text(stage: &ClipT5Text, text: &str, options: TextOptions) -> (PromptText, Arc<Tokens>) {
    let text = PromptText::plain(text, stage.effective(options));
    let tokens = stage.tokenize(&text, &NoWords).unwrap();
    (text, Arc::new(tokens))
}

fn encode_with(stage: &ClipT5Text, texts: &[&str], options: TextOptions) -> Vec<TextTensors> {
    let texts: Vec<_> = texts.iter().map(|own| text(stage, own, options)).collect();
    stage.encode(&texts, &mut OnCpu::default()).unwrap()
}

fn encode(stage: &ClipT5Text, texts: &[&str]) -> Vec<TextTensors> {
    encode_with(stage, texts, TextOptions::default())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn all_values(text: &TextTensors) -> Vec<Vec<f32>> {
    text.iter().map(|(_, tensor)| values(tensor)).collect()
}

/// Some rows of the context.
fn rows(text: &TextTensors, first: usize, count: usize) -> Tensor {
    text.get(CONTEXT).unwrap().narrow(1, first, count).unwrap()
}

#[test]
fn texts_have_their_own_bits_and_the_shapes_of_plans() {
    for stage in [sd3(), flux()] {
        let texts = ["a red fox", "", "(snow:1.3) and ice"];
        let together = encode(&stage, &texts);
        for (own, found) in texts.iter().zip(&together) {
            assert_eq!(all_values(&encode(&stage, &[own])[0]), all_values(found), "{own}");
        }
        let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
        let planned = stage.dry_run(&device, DType::F32, stage.least(), texts.len()).unwrap();
        let planned: Vec<Vec<usize>> = planned.iter().map(|meta| meta.dims().to_vec()).collect();
        let real = together.iter().flat_map(|text| text.iter().map(|(_, tensor)| tensor.dims().to_vec()));
        assert_eq!(planned, real.collect::<Vec<_>>());
        assert!(device.take_flop().total() > 0.0);
        let sample = Arc::new(stage.sample(1));
        let plain = PromptText::plain("", stage.effective(TextOptions::default()));
        let sampled = stage.encode(&[(plain, sample)], &mut OnCpu::default()).unwrap();
        let shapes: Vec<_> = sampled[0].iter().map(|(name, tensor)| (name, tensor.dims().to_vec())).collect();
        assert_eq!(shapes, stage.shapes(stage.least()));
    }
}

#[test]
fn rows_of_clip_come_first_and_end_with_zeros() {
    let stage = sd3();
    let text = &encode(&stage, &["a red fox"])[0];
    assert_eq!(text.get(CONTEXT).unwrap().dims(), [1, 77 + LENGTH, 24]);
    let padding = rows(text, 0, 77).narrow(2, 20, 4).unwrap();
    assert!(values(&padding).iter().all(|&value| value == 0.0));
    assert_eq!(text.get(POOLED).unwrap().dims(), [1, 20]);
    let mut on = OnCpu::default();
    stage.encode(&[super::tests::text(&stage, "a", TextOptions::default())], &mut on).unwrap();
    assert_eq!(on.entered, [0, 1, 2]);
    assert_eq!(stage.networks().len(), 3);
}

#[test]
fn absent_encoders_leave_zeros_in_their_places() {
    let whole = &encode(&sd3(), &["a red fox"])[0];
    let of = |clip, t5| encode(&ClipT5Text::sd3(clip, t5, WIDTHS, LENGTH), &["a red fox"]).remove(0);
    let zero = |tensor: Tensor| values(&tensor).iter().all(|&value| value == 0.0);
    let without_t5 = of([Some(l()), Some(g())], None);
    assert_eq!(values(&rows(&without_t5, 0, 77)), values(&rows(whole, 0, 77)));
    assert!(zero(rows(&without_t5, 77, LENGTH)));
    let columns = |text: &TextTensors, first, count| rows(text, 0, 77).narrow(2, first, count).unwrap();
    let pooled = |text: &TextTensors, first, count| text.get(POOLED).unwrap().narrow(1, first, count).unwrap();
    for (clip, present, absent) in [([None, Some(g())], (8, 12), (0, 8)), ([Some(l()), None], (0, 8), (8, 12))] {
        let found = of(clip, Some(t5()));
        assert_eq!(values(&columns(&found, present.0, present.1)), values(&columns(whole, present.0, present.1)));
        assert_eq!(values(&pooled(&found, present.0, present.1)), values(&pooled(whole, present.0, present.1)));
        assert!(zero(columns(&found, absent.0, absent.1)) && zero(pooled(&found, absent.0, absent.1)));
    }
    let t5_alone = of([None, None], Some(t5()));
    assert!(zero(rows(&t5_alone, 0, 77)));
    assert_eq!(values(&rows(&t5_alone, 77, LENGTH)), values(&rows(whole, 77, LENGTH)));
}

#[test]
fn longer_texts_get_chunks_of_clip_and_shorter_ones_are_filled_up() {
    let stage = sd3();
    let long = "fox ".repeat(80);
    let [short, long, empty] =
        [&encode(&stage, &["a fox"])[0], &encode(&stage, &[&long])[0], &encode(&stage, &[""])[0]];
    let total = 2 * 77 + LENGTH;
    assert_eq!(long.get(CONTEXT).unwrap().dims(), [1, total, 24]);
    let row = Fill { own: 77 + LENGTH, parts: 77 + LENGTH, total, padded: true };
    assert!(stage.needs_empty(77 + LENGTH, &row) && !stage.needs_empty(total, &row));
    let filled = stage.fill(short, &row, Some(empty)).unwrap();
    assert_eq!(filled.get(CONTEXT).unwrap().dims(), [1, total, 24]);
    assert_eq!(values(&rows(&filled, 0, 77)), values(&rows(short, 0, 77)));
    assert_eq!(values(&rows(&filled, 77, 77)), values(&rows(empty, 0, 77)));
    assert_eq!(values(&rows(&filled, 154, LENGTH)), values(&rows(short, 77, LENGTH)));
    assert_eq!(stage.fit(&[total, 77 + LENGTH], true).unwrap(), total);
    let message = stage.fit(&[total, 77 + LENGTH], false).unwrap_err().to_string();
    assert!(message.starts_with("`pad_conds` is off, expected on: "), "{message}");
    let truncated = TextOptions { chunk_cut: ChunkCut::Truncate, ..TextOptions::default() };
    let cut = &encode_with(&stage, &[&"fox ".repeat(80)], truncated)[0];
    assert_eq!(cut.get(CONTEXT).unwrap().dims(), [1, 77 + LENGTH, 24]);
    assert_eq!(values(&rows(cut, 0, 77)), values(&rows(long, 0, 77)));
}

#[test]
fn flux_takes_the_pooled_vector_of_the_first_77_tokens() {
    let stage = flux();
    let texts = [&*"fox ".repeat(75), &"fox ".repeat(90)];
    let [fitting, long] = [0, 1].map(|i| encode(&stage, &texts)[i].clone());
    assert_eq!(fitting.get(CONTEXT).unwrap().dims(), [1, LENGTH, 24]);
    assert_eq!(values(fitting.get(POOLED).unwrap()), values(long.get(POOLED).unwrap()));
    assert_eq!(stage.ignores(), ["clip_skip", "chunk_cut", "comma_backtrack"]);
    let other = TextOptions { clip_skip: Some(2), comma_backtrack: 3, ..TextOptions::default() };
    assert_eq!(stage.effective(other), stage.effective(TextOptions::default()));
}

#[test]
fn weights_of_words_change_t5_and_keep_the_mean() {
    let stage = flux();
    let mean = |text: &TextTensors| {
        let values = values(text.get(CONTEXT).unwrap());
        values.iter().sum::<f32>() / values.len() as f32
    };
    let of = |text: &str, emphasis| {
        encode_with(&stage, &[text], TextOptions { emphasis, ..TextOptions::default() })[0].clone()
    };
    let plain = of("a fox in snow", Emphasis::Original);
    for emphasis in [Emphasis::Original, Emphasis::NoNorm, Emphasis::Comfy, Emphasis::Compel] {
        let weighted = of("a (fox:1.4) in snow", emphasis);
        assert_ne!(all_values(&weighted), all_values(&plain), "{emphasis:?}");
    }
    let weighted = of("a (fox:1.4) in snow", Emphasis::Original);
    assert!((mean(&weighted) / mean(&plain) - 1.0).abs() < 1e-3);
    assert_eq!(all_values(&of("a (fox:1.4) in snow", Emphasis::Ignore)), all_values(&plain));
    assert_ne!(all_values(&of("a (fox:1.4) in snow", Emphasis::None)), all_values(&plain), "brackets are text");
}

#[test]
fn the_number_of_tokens_is_an_option_and_what_does_not_fit_is_named() {
    let stage = sd3();
    let length =
        |length| text(&stage, "a fox in (snow:1.2)", TextOptions { max_length: length, ..TextOptions::default() }).1;
    assert_eq!((length(None).length(), length(Some(20)).length()), (77 + LENGTH, 97));
    // `▁a`, `▁fox`, `▁in` and `▁snow` are letter by letter.
    assert_eq!((length(None).used(), length(None).cut()), (14, Some("now")));
    assert_eq!((length(Some(15)).used(), length(Some(15)).cut()), (14, None));
    assert_eq!(length(Some(4)).cut(), Some("fox in snow"));
    assert!((length(None).heaviest() - 1.2).abs() < 1e-6);
    assert!(text(&stage, "a", TextOptions::default()).1.cut().is_none());
}

#[test]
fn a_masked_text_has_its_tokens_and_one_of_padding() {
    let stage = MaskedT5Text::new(t5(), LENGTH);
    let lengths = |most: Option<usize>, text: &str| {
        let text = PromptText::plain(text, TextOptions { max_length: most, ..TextOptions::default() });
        let tokens = stage.tokenize(&text, &NoWords).unwrap();
        let found = stage.encode(&[(text, Arc::new(tokens))], &mut OnCpu::default()).unwrap().remove(0);
        let context = found.get(CONTEXT).unwrap().clone();
        assert_eq!(context.dims()[1] % 32, 0);
        let length = values(found.get(LENGTH_OF_TEXT).unwrap())[0] as usize;
        let behind = context.narrow(1, length, context.dims()[1] - length).unwrap();
        assert!(values(&behind).iter().all(|&value| value == 0.0));
        (length, values(&context.narrow(1, 0, length).unwrap()))
    };
    // `▁a` is two tokens; an end token and one of padding follow.
    assert_eq!((lengths(None, "").0, lengths(None, "a").0), (2, 4));
    assert_eq!((lengths(Some(4), "abcdef").0, lengths(Some(5), "abc").0, lengths(Some(6), "abc").0), (4, 5, 6));
    assert_eq!(lengths(Some(40), "a"), lengths(None, "a"), "the most changes nothing");
    assert_eq!(stage.shapes(32), [(CONTEXT, vec![1, 32, 24]), (LENGTH_OF_TEXT, vec![1])]);
    assert_eq!(stage.fit(&[32, 64], false).unwrap(), 64);
}
