//! Token ids and every stage of the text encoders compared with transformers, for tiny random models.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use kiln_clip::{HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};
use kiln_nn::ops::layer_norm;
use kiln_testkit::{Fixture, Parity, Target, fixtures, shared_data};
use kiln_weights::{KeyRule, Placement, Renamed, load, open_component};

/// In standard deviations. Both sides compute in f32, with another order of the sums.
const BOUND: f64 = 1e-4;
/// The bounds in f16 and bf16: about 20 roundings between operators, each within 2^-11 or 2^-8 of a value that may be
/// several standard deviations.
const HALF_BOUNDS: [f64; 2] = [1e-2, 8e-2];

fn ids(fixture: &Fixture, key: &str) -> Vec<Vec<u32>> {
    let rows: Vec<Vec<i64>> = fixture.tensor(key).to_vec2().unwrap();
    rows.into_iter().map(|row| row.into_iter().take_while(|&id| id >= 0).map(|id| id as u32).collect()).collect()
}

/// An encoder in f32 on the CPU.
fn encoder(model: &str, suffix: &str) -> TextEncoder {
    encoder_on(model, suffix, &Device::Cpu, DType::F32)
}

fn encoder_on(model: &str, suffix: &str, device: &Device, dtype: DType) -> TextEncoder {
    let folder = fixtures(&format!("models/{model}/text_encoder{suffix}"));
    let encoder = TextEncoder::new(TextEncoderConfig::open(&folder).unwrap()).unwrap();
    let source = Renamed::new(open_component(&folder).unwrap(), KeyRule::TEXT_MODEL);
    load(encoder.segments(), &source, &Placement::new(device.clone(), dtype)).unwrap();
    encoder
}

fn tokenizer(model: &str, suffix: &str) -> Tokenizer {
    Tokenizer::open(&fixtures(&format!("models/{model}/tokenizer{suffix}"))).unwrap()
}

/// Checks everything that the fixture contains of a model, and that nothing in it was left unchecked.
fn check(model: &str, suffixes: &[&str]) {
    let fixture = Fixture::open(&format!("stages/text_{model}.safetensors"));
    let target = Target::from_env();
    let bound = target.bound(BOUND, HALF_BOUNDS[0], HALF_BOUNDS[1]);
    let parity = Parity::new("text", target.label(model));
    let (prompts, tricky): (Vec<String>, Vec<String>) = (fixture.note("prompts"), fixture.note("tricky"));
    let mut unseen: BTreeSet<&str> = fixture.keys().into_iter().collect();
    for (e, suffix) in suffixes.iter().enumerate() {
        let ids_infix = if e == 0 { String::new() } else { format!(".e{}", e + 1) };
        let (tokenizer, encoder) = (tokenizer(model, suffix), encoder_on(model, suffix, &target.device, target.dtype));

        let key = format!("tricky{ids_infix}.ids");
        for (text, expected) in tricky.iter().zip(ids(&fixture, &key)) {
            assert_eq!(tokenizer.encode(text).unwrap(), expected, "{model}{suffix}: {text:?}");
        }
        unseen.remove(key.as_str());

        for (k, prompt) in prompts.iter().enumerate() {
            let key = format!("p{k}{ids_infix}.ids");
            let chunks = tokenizer.chunks(prompt).unwrap();
            assert_eq!(chunks, ids(&fixture, &key), "{model}{suffix}: {prompt:?}");
            unseen.remove(key.as_str());

            let mut observe = |stage: &str, found: &Tensor| {
                let key = format!("p{k}.e{}.{stage}", e + 1);
                if let Some(expected) = fixture.get(&key) {
                    parity.check(&key, found, &expected, bound);
                    unseen.remove(key.as_str());
                }
            };
            encoder.encode_observed(&chunks, HiddenLayer::LAST, &target.device, &mut observe).unwrap();
        }
    }
    assert!(unseen.is_empty(), "{model}: nothing was compared with {unseen:?}");
}

#[test]
fn sd1_is_as_in_transformers() {
    check("sd1", &[""]);
}

#[test]
fn sd2v_is_as_in_transformers() {
    check("sd2v", &[""]);
}

#[test]
fn sdxl_is_as_in_transformers() {
    check("sdxl", &["", "_2"]);
}

#[test]
fn the_requested_layer_does_not_affect_pooling() {
    let fixture = Fixture::open("stages/text_sdxl.safetensors");
    let parity = Parity::new("text", "sdxl");
    let encoder = encoder("sdxl", "_2");
    let chunks = ids(&fixture, "p0.e2.ids");
    for (layer, expected) in [
        (HiddenLayer::LAST, "p0.e2.last"),
        (HiddenLayer::PENULTIMATE, "p0.e2.hidden.2"),
        (HiddenLayer { from_end: 1, final_layer_norm: false }, "p0.e2.hidden.3"),
        (HiddenLayer { from_end: 3, final_layer_norm: false }, "p0.e2.hidden.1"),
    ] {
        let output = encoder.encode(&chunks, layer, &Device::Cpu).unwrap();
        parity.check(expected, &output.hidden, &fixture.tensor(expected), BOUND);
        parity.check("p0.e2.pooled", &output.pooled, &fixture.tensor("p0.e2.pooled"), BOUND);
    }
}

/// AUTOMATIC1111's "clip skip" of 2: the penultimate layer, normalized.
#[test]
fn a_skipped_layer_can_be_normalized() {
    let fixture = Fixture::open("stages/text_sdxl.safetensors");
    let file = Fixture::open("models/sdxl/text_encoder_2/model.safetensors");
    let [gamma, beta] = ["weight", "bias"]
        .map(|name| file.tensor(&format!("text_model.final_layer_norm.{name}")).to_dtype(DType::F32).unwrap());
    let expected = layer_norm(&fixture.tensor("p0.e2.hidden.2"), &gamma, &beta, 1e-5, None).unwrap();
    let layer = HiddenLayer { from_end: 2, final_layer_norm: true };
    let chunks = ids(&fixture, "p0.e2.ids");
    let output = encoder("sdxl", "_2").encode(&chunks, layer, &Device::Cpu).unwrap();
    Parity::new("text", "sdxl").check("p0.e2.hidden.2 normalized", &output.hidden, &expected, BOUND);
}

#[test]
fn chunks_do_not_see_each_other() {
    let (tokenizer, encoder) = (tokenizer("sd1", ""), encoder("sd1", ""));
    let chunks = [tokenizer.chunks("a red apple").unwrap(), vec![tokenizer.empty_chunk()]].concat();
    let encode = |chunks: &[Vec<u32>]| encoder.encode(chunks, HiddenLayer::LAST, &Device::Cpu).unwrap();
    let both = encode(&chunks);
    for (i, chunk) in chunks.iter().enumerate() {
        let alone = encode(std::slice::from_ref(chunk));
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&both.hidden.narrow(0, i, 1).unwrap()), values(&alone.hidden));
        assert_eq!(values(&both.pooled.narrow(0, i, 1).unwrap()), values(&alone.pooled));
    }
}

#[test]
fn half_precision_is_close_to_f32() {
    let fixture = Fixture::open("stages/text_sdxl.safetensors");
    let parity = Parity::new("text", "sdxl");
    let chunks = ids(&fixture, "p2.e2.ids");
    for (dtype, bound) in [DType::F16, DType::BF16].into_iter().zip(HALF_BOUNDS) {
        let output = encoder_on("sdxl", "_2", &Device::Cpu, dtype)
            .encode(&chunks, HiddenLayer::PENULTIMATE, &Device::Cpu)
            .unwrap();
        assert_eq!(output.hidden.dtype(), dtype);
        for (found, key) in [(&output.hidden, "p2.e2.hidden.2"), (&output.pooled, "p2.e2.pooled")] {
            parity.check(&format!("{key} {dtype:?}"), found, &fixture.tensor(key), bound);
        }
    }
}

/// The ids are from transformers 5.23, `CLIPTokenizer.from_pretrained(folder)(text, add_special_tokens=False)`.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_full_vocabulary_gives_transformers_ids() {
    let folder = shared_data("tokenizer");
    let tokenizer = Tokenizer::open(&folder).unwrap();
    let (bos, eos) = (49406, 49407);
    assert_eq!([tokenizer.bos(), tokenizer.eos(), tokenizer.pad()], [bos, eos, eos]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.max_length()), (49408, 77));

    let astronaut = [320, 1125, 539, 550, 18376, 6765, 320, 4558, 525, 7496];
    assert_eq!(tokenizer.encode("a photo of an astronaut riding a horse on mars").unwrap(), astronaut);
    let mut chunk = [&[bos][..], &astronaut, &[eos]].concat();
    chunk.resize(77, eos);
    assert_eq!(tokenizer.chunks("A  photo of an Astronaut riding a HORSE on mars\n").unwrap(), [chunk]);

    let text = "Crème brûlée, 8K — “ultra-detailed” artstation!! 🚀🍎 it's <|endoftext|> DON'T";
    let expected = [
        1075, 12138, 614, 711, 127, 119, 75, 13489, 267, 279, 330, 2005, 728, 506, 8118, 268, 12609, 728, 507, 1486,
        2631, 748, 22400, 32069, 585, 568, 49407, 847, 713,
    ];
    assert_eq!(tokenizer.encode(text).unwrap(), expected);
}
