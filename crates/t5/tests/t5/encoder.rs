//! Encoders of random weights: the bits of a text do not depend on others, f16 does not overflow, and shapes are those of plans.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_t5::{Error, T5Config, T5Encoder, T5Ids};
use kiln_testkit::deviation;
use kiln_weights::{KeyRule, MapSource, ParamSource, Placement, RandomSource, Renamed, Segment, load, mismatches};

fn config() -> T5Config {
    T5Config { vocab_size: 60, d_model: 24, d_kv: 8, d_ff: 40, num_layers: 3, num_heads: 2, ..T5Config::xxl() }
}

/// Random weights, of which those of the feed-forward layers are `scale` times the usual, and the last ones its cube.
fn weights(encoder: &T5Encoder, scale: f64) -> MapSource {
    let random = RandomSource::new(encoder.segments(), 3);
    let tensor = |key: &str, shape: &[usize]| {
        let bytes = random.data(key).unwrap().unwrap().bytes;
        let tensor = Tensor::from_raw_buffer(&bytes, DType::F16, shape, &Device::Cpu).unwrap();
        let tensor = tensor.to_dtype(DType::F32).unwrap();
        match () {
            () if key.contains(".wo.") => (tensor * scale.powi(3)).unwrap(),
            () if key.contains(".wi_") => (tensor * scale).unwrap(),
            () => tensor,
        }
    };
    let params = encoder.segments().iter().flat_map(Segment::params);
    params.map(|param| (param.key.clone(), tensor(&param.key, &param.shape))).collect()
}

fn encoder(dtype: DType, scale: f64) -> T5Encoder {
    let encoder = T5Encoder::new(config()).unwrap();
    load(encoder.segments(), &weights(&encoder, scale), &Placement::new(Device::Cpu, dtype)).unwrap();
    encoder
}

fn ids(first: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (first + 7 * i) % 60).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn the_real_encoder_has_transformers_number_of_parameters() {
    let encoder = T5Encoder::new(T5Config::xxl()).unwrap();
    assert_eq!(encoder.segments().parameters(), 4_762_310_656);
    assert_eq!(encoder.segments().len(), 26);
    assert!(encoder.segments()[0].on_host() && !encoder.segments()[1].on_host());
}

#[test]
fn names_are_those_of_transformers() {
    let encoder = T5Encoder::new(config()).unwrap();
    let keys: Vec<&str> = encoder.segments().iter().flat_map(Segment::params).map(|param| param.key.as_str()).collect();
    for key in [
        "shared.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.2.layer.0.SelfAttention.q.weight",
        "encoder.block.2.layer.0.SelfAttention.o.weight",
        "encoder.block.2.layer.0.layer_norm.weight",
        "encoder.block.2.layer.1.DenseReluDense.wi_0.weight",
        "encoder.block.2.layer.1.DenseReluDense.wo.weight",
        "encoder.block.2.layer.1.layer_norm.weight",
        "encoder.final_layer_norm.weight",
    ] {
        assert!(keys.contains(&key), "{key}");
    }
    assert_eq!(keys.len(), 2 + 1 + 3 * 9);
    let all = keys.iter().map(|key| key.replace("shared.", "encoder.embed_tokens."));
    let shapes: HashMap<&str, Vec<usize>> = encoder
        .segments()
        .iter()
        .flat_map(Segment::params)
        .map(|param| (param.key.as_str(), param.shape.clone()))
        .collect();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let renamed: MapSource = all.zip(&keys).map(|(name, key)| (name, zeros(&shapes[key]))).collect();
    assert!(mismatches(encoder.segments(), &Renamed::new(renamed, KeyRule::T5_TABLE)).is_empty());
}

#[test]
fn a_text_has_the_same_bits_alone() {
    for dtype in [DType::F32, DType::F16] {
        let encoder = encoder(dtype, 1.0);
        let texts = [ids(1, 9), ids(2, 30), ids(3, 9)];
        let together = encoder.encode(&texts, &Device::Cpu).unwrap();
        for (text, found) in texts.iter().zip(&together) {
            assert_eq!((found.dims(), found.dtype()), (&[1, text.len(), 24][..], dtype));
            let alone = encoder.encode(std::slice::from_ref(text), &Device::Cpu).unwrap();
            assert_eq!(bits(&alone[0]), bits(found));
        }
        assert_ne!(bits(&together[0]), bits(&together[2]));
    }
}

/// The hidden layer has values of about 100 and the last layer's weights are about 1000, so that its results are about 10 times
/// the largest number of f16.
#[test]
fn f16_does_not_overflow() {
    let text = [ids(5, 40)];
    let of = |dtype| encoder(dtype, 15.0).encode(&text, &Device::Cpu).unwrap().remove(0);
    let (exact, half) = (of(DType::F32), of(DType::F16));
    let error = deviation(&half, &exact).error;
    assert!(error < 0.02, "{error}");
    let bf16 = deviation(&of(DType::BF16), &exact).error;
    assert!(bf16 < 0.2, "{bf16}");
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let encoder = encoder(DType::F16, 1.0);
    let texts = [ids(1, 12), ids(2, 12)];
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F16);
    let meta: Vec<MetaTensor> = encoder.forward(&texts.clone().map(T5Ids::from), &device).unwrap();
    let real = encoder.encode(&texts, &Device::Cpu).unwrap();
    for (meta, real) in meta.iter().zip(&real) {
        assert_eq!((meta.dims(), meta.dtype()), (real.dims(), real.dtype()));
    }
    assert!(device.take_flop().total() > 0.0);
}

#[test]
fn ids_outside_of_the_vocabulary_are_refused() {
    let encoder = encoder(DType::F32, 1.0);
    let refused = |ids: Vec<u32>| encoder.encode(&[ids], &Device::Cpu).unwrap_err();
    assert!(matches!(refused(vec![1, 60]), Error::Token { id: 60, vocab_size: 60 }));
    assert!(refused(Vec::new()).to_string().contains("`ids` has shape [0], expected 1 to 4096 tokens"));
}

/// Other tokens do not see a masked one, which itself sees them.
#[test]
fn masked_tokens_are_not_attended_and_have_states() {
    let encoder = encoder(DType::F32, 1.0);
    let (short, other) = (ids(1, 9), [ids(1, 9), vec![3]].concat());
    let masked = |last: u32| T5Ids { ids: [ids(1, 9), vec![last]].concat(), masked: 1 };
    let run = |text: T5Ids| encoder.forward::<Tensor>(&[text], &Device::Cpu).unwrap().remove(0);
    let (alone, first, second) = (run(short.into()), run(masked(3)), run(masked(4)));
    let rows =
        |x: &Tensor, first, count| x.narrow(1, first, count).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(rows(&first, 0, 9), rows(&second, 0, 9));
    assert!(deviation(&first.narrow(1, 0, 9).unwrap(), &alone).error < 1e-5);
    assert_ne!(rows(&first, 9, 1), rows(&second, 9, 1));
    assert_ne!(rows(&first, 0, 9), rows(&run(other.into()), 0, 9));
    let refused = encoder.forward::<Tensor>(&[T5Ids { ids: vec![1, 2], masked: 2 }], &Device::Cpu).map(drop);
    assert!(refused.unwrap_err().to_string().contains("less than 2 masked tokens"));
}
