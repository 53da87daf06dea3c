//! Stages with random weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_network::text::{
    CONTEXT, Fill, LENGTH, NoWords, PromptImage, PromptText, Result, Runs, TextDevice, TextStage, TextTensors, Tokens,
};
use kiln_nn::MetaDevice;
use kiln_nn::ops::Target;
use kiln_prompt::TextOptions;
use kiln_qwen::{QwenConfig, QwenEncoder, Text, Tokenizer};
use kiln_weights::{Placement, RandomSource, load};
use serde_json::json;

use super::{QwenPart, QwenText};
use crate::qwen_edit::Edit;

/// Runs on the calling thread.
struct OnCpu;

impl Runs for OnCpu {
    fn enter(&mut self, _network: usize) -> Result<TextDevice> {
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

fn part(hidden: &[usize]) -> QwenPart {
    let config = r#"{"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}"#;
    part_of(QwenEncoder::new(QwenConfig::from_json(config).unwrap(), hidden).unwrap())
}

/// A part of Qwen2.5-VL.
fn vision_part() -> QwenPart {
    let config = r#"{"model_type": "qwen2_5_vl", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}"#;
    part_of(QwenEncoder::normed(QwenConfig::from_json(config).unwrap()).unwrap())
}

/// The id of a token of an image.
const IMAGE: u32 = 37;

/// The stage of Qwen-Image-Edit.
fn editing(edit: Edit) -> QwenText {
    let config = r#"{"model_type": "qwen2_5_vl", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_scaling": {"mrope_section": [1, 1, 2]},
        "vision_config": {"depth": 2, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 16}}"#;
    let encoder = QwenEncoder::seeing(QwenConfig::from_json(config).unwrap()).unwrap();
    QwenText::qwen_image_edit(part_of(encoder), edit)
}

/// An image of 56 x 84 pixels: six tokens.
fn image(value: u8) -> PromptImage {
    PromptImage::new(Arc::new(Rgb8Image::filled(56, 84, [value, 90, 7]).unwrap()))
}

fn with_images(stage: &QwenText, own: &str, images: &[PromptImage]) -> (PromptText, Arc<Tokens>) {
    let (text, _) = text(stage, own, None);
    let text = PromptText { images: images.to_vec(), ..text };
    let tokens = stage.tokenize(&text, &NoWords).unwrap();
    (text, Arc::new(tokens))
}

fn part_of(encoder: QwenEncoder) -> QwenPart {
    let source = RandomSource::new(encoder.segments(), 5);
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let letters = "abcdefghijklmnopqrstuvwxyz</>ĠĊ:.()0123456789_|".chars().take(32);
    let vocab: BTreeMap<String, usize> = letters.enumerate().map(|(id, letter)| (letter.to_string(), id)).collect();
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [special(32, "<|endoftext|>"), special(33, "<|im_start|>"), special(34, "<|im_end|>"),
            special(35, "<|vision_start|>"), special(36, "<|vision_end|>"), special(IMAGE, "<|image_pad|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let texts = BTreeMap::from([("tokenizer.json".to_string(), file.to_string())]);
    QwenPart { encoder, tokenizer: Some(Tokenizer::from_texts(Path::new("test"), &texts).unwrap()), network: None }
}

fn text(stage: &QwenText, text: &str, max_length: Option<usize>) -> (PromptText, Arc<Tokens>) {
    let options = stage.effective(TextOptions { max_length, ..TextOptions::default() });
    let text = PromptText::plain(text, options);
    let tokens = stage.tokenize(&text, &NoWords).unwrap();
    (text, Arc::new(tokens))
}

fn encode(stage: &QwenText, texts: &[&str], max_length: Option<usize>) -> Vec<TextTensors> {
    let texts: Vec<_> = texts.iter().map(|own| text(stage, own, max_length)).collect();
    stage.encode(&texts, &mut OnCpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn texts_have_their_own_bits_and_the_shapes_of_plans() {
    let qwen_image = QwenText::qwen_image(vision_part());
    for stage in [QwenText::z_image(part(&[3])), QwenText::klein(part(&[1, 3])), qwen_image] {
        let texts = ["a red fox", "", "snow and ice"];
        let together = encode(&stage, &texts, None);
        for (own, found) in texts.iter().zip(&together) {
            let alone = &encode(&stage, &[own], None)[0];
            let all = |text: &TextTensors| text.iter().map(|(_, tensor)| values(tensor)).collect::<Vec<_>>();
            assert_eq!(all(alone), all(found), "{own}");
        }
        let least = stage.least();
        let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
        let plan = |own: &str| {
            let rows = text(&stage, own, None).1.length();
            assert!(rows >= least);
            stage.dry_run(&device, DType::F32, rows, 1).unwrap()
        };
        let planned = texts.iter().flat_map(|own| plan(own));
        let planned: Vec<_> = planned.map(|meta| (meta.dims().to_vec(), meta.dtype())).collect();
        let real = together.iter().flat_map(|text| text.iter().map(|(_, x)| (x.dims().to_vec(), x.dtype())));
        assert_eq!(planned, real.collect::<Vec<_>>());
        let sample = Arc::new(stage.sample(1));
        let plain = PromptText::plain("", stage.effective(TextOptions::default()));
        let sampled = stage.encode(&[(plain, sample)], &mut OnCpu).unwrap();
        let shapes: Vec<_> = sampled[0].iter().map(|(name, tensor)| (name, tensor.dims().to_vec())).collect();
        assert_eq!(shapes, stage.shapes(least));
    }
}

#[test]
fn z_image_has_the_rows_of_the_text_alone() {
    let stage = QwenText::z_image(part(&[3]));
    let [short, long] = [0, 1].map(|i| encode(&stage, &["a fox", &"fox ".repeat(9)], None)[i].clone());
    let length = |text: &TextTensors| values(text.get(LENGTH).unwrap())[0] as usize;
    // `<|im_start|>user\n`, `a fox`, `<|im_end|>\n<|im_start|>assistant\n`.
    assert_eq!((length(&short), short.get(CONTEXT).unwrap().dims()), (6 + 5 + 13, &[1, 32, 16][..]));
    assert_eq!((length(&long), long.get(CONTEXT).unwrap().dims()), (6 + 36 + 13, &[1, 64, 16][..]));
    let filling = short.get(CONTEXT).unwrap().narrow(1, 24, 8).unwrap();
    assert!(values(&filling).iter().all(|&value| value == 0.0));
    assert_eq!(stage.fit(&[32, 64], false).unwrap(), 64);
    let fill = Fill { own: 32, parts: 32, total: 64, padded: false };
    assert!(!stage.needs_empty(32, &fill));
    let filled = stage.fill(&short, &fill, None).unwrap();
    assert_eq!((filled.get(CONTEXT).unwrap().dims(), length(&filled)), (&[1, 64, 16][..], 24));
}

#[test]
fn klein_has_a_fixed_number_of_rows() {
    let stage = QwenText::klein(part(&[1, 3]));
    let found = &encode(&stage, &["a fox"], Some(64))[0];
    assert_eq!(found.get(CONTEXT).unwrap().dims(), [1, 64, 32]);
    assert!(found.get(LENGTH).is_none());
    let (_, tokens) = text(&stage, &"fox ".repeat(30), Some(64));
    assert_eq!((tokens.length(), tokens.used(), tokens.room()), (64, 120, 58));
    assert!(tokens.cut().is_some_and(|cut| cut.ends_with("fox")));
}

#[test]
fn qwen_image_takes_no_rows_of_the_first_tokens() {
    let stage = QwenText::qwen_image(vision_part());
    let own = text(&stage, "a fox", None);
    let ids = own.1.own::<Text>().unwrap().clone();
    let found = encode(&stage, &["a fox"], None)[0].clone();
    let length = ids.length - 34;
    assert_eq!(values(found.get(LENGTH).unwrap()), [length as f32]);
    assert_eq!(found.get(CONTEXT).unwrap().dims(), [1, length.next_multiple_of(32), 16]);
    let all = vision_part().encoder.encode(&[ids], &Device::Cpu).unwrap()[0].clone();
    let rows = all.narrow(1, 34, length).unwrap();
    assert_eq!(values(&found.get(CONTEXT).unwrap().narrow(1, 0, length).unwrap()), values(&rows));
    let tokens = |own: &str| text(&stage, own, Some(40)).1.own::<Text>().unwrap().ids.clone();
    assert_eq!(tokens(""), tokens(" "));
    assert_eq!(tokens(&"fox ".repeat(90)).len(), 74);
}

#[test]
fn words_have_no_weights_and_brackets_are_text() {
    let stage = QwenText::z_image(part(&[3]));
    let tokens = |own: &str| text(&stage, own, None).1.used();
    assert_eq!(tokens("(fox:1.2)") - tokens("fox"), 1, "the colon is in this vocabulary");
    assert_eq!(stage.ignores(), ["clip_skip", "chunk_cut", "comma_backtrack"]);
    let other = TextOptions { clip_skip: Some(2), ..TextOptions::default() };
    assert_eq!(stage.effective(other), stage.effective(TextOptions::default()));
}

#[test]
fn images_are_before_the_prompt() {
    for (edit, images) in [(Edit::One, 1), (Edit::Several, 2)] {
        let stage = editing(edit);
        let all: Vec<PromptImage> = (0..images).map(|i| image(i as u8)).collect();
        let plain = text(&stage, "a fox", None);
        let seen = with_images(&stage, "a fox", &all);
        let ids = |tokens: &Arc<Tokens>| tokens.own::<Text>().unwrap().clone();
        let (found, without) = (ids(&seen.1), ids(&plain.1));
        let of_image = found.ids.iter().filter(|id| **id == IMAGE).count();
        assert_eq!((of_image, found.images.len()), (6 * images, images));
        for (i, place) in found.images.iter().enumerate() {
            assert_eq!((place.image, found.ids[place.start - 1], found.ids[place.start + 6]), (i, 35, 36));
        }
        // The prompt and its room are the same.
        assert_eq!(found.ids[found.ids.len() - 5..], without.ids[without.ids.len() - 5..]);
        assert_eq!((seen.1.used(), seen.1.room()), (plain.1.used(), plain.1.room()));
        // A token of the prompt itself stands for no image.
        let quoted = with_images(&stage, "<|image_pad|> fox", &all);
        assert_eq!(ids(&quoted.1).ids.iter().filter(|id| **id == IMAGE).count(), 6 * images + 1);
    }
}

#[test]
fn texts_with_images_have_their_own_bits_and_the_shapes_of_plans() {
    let stage = editing(Edit::Several);
    let images = [image(1), image(2)];
    let texts = [
        with_images(&stage, "a fox", &images),
        with_images(&stage, "", &images),
        with_images(&stage, "a fox", &images[1..]),
        text(&stage, "a fox", None),
    ];
    let together = stage.encode(&texts, &mut OnCpu).unwrap();
    let context = |text: &TextTensors| values(text.get(CONTEXT).unwrap());
    for (i, own) in texts.iter().enumerate() {
        let alone = stage.encode(std::slice::from_ref(own), &mut OnCpu).unwrap();
        assert_eq!(context(&alone[0]), context(&together[i]), "text {i}");
    }
    assert_ne!(context(&together[0]), context(&together[2]));
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
    let planned = stage.dry_run_with_images(&device, DType::F32, (texts[0].1.length(), 1), (2, (56, 84))).unwrap();
    let planned: Vec<_> = planned.iter().map(|meta| meta.dims().to_vec()).collect();
    assert_eq!(planned, together[0].iter().map(|(_, x)| x.dims().to_vec()).collect::<Vec<_>>());
    // A key of a store has no pixels to encode.
    let (own, tokens) = &texts[0];
    assert!(stage.encode(&[(own.key(), tokens.clone())], &mut OnCpu).is_err());
}
