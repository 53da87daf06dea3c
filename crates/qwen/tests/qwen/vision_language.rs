//! The text part of Qwen2.5-VL: values of transformers, and names.

use candle_core::{DType, Device, Tensor};
use kiln_qwen::{QwenConfig, QwenEncoder, Text};
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, Segment, load};

const CONFIG: &str = r#"{"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", "vocab_size": 60,
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "rope_parameters": {"mrope_section": [1, 1, 2], "rope_theta": 1000000.0,
    "rope_type": "default", "type": "mrope"}}}"#;

/// Every 11th value of `hidden_states[-1]` of transformers' `Qwen2_5_VLForConditionalGeneration` (5.24) in f32, with the weights
/// below, for nine ids and three of padding.
const EXPECTED: [f32; 20] = [
    0.989693, -0.833124, 0.25572, 0.503524, -0.383605, -0.127623, -0.691686, -0.37154, -0.079559, 1.042467, -0.642598,
    -0.823965, 0.530974, 0.175105, 0.626007, -0.018137, -0.516917, -0.250789, -0.091999, -0.195754,
];

/// Values of about 1 that do not repeat.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 3.4 - 1.7;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn encoder() -> QwenEncoder {
    let encoder = QwenEncoder::normed(QwenConfig::from_json(CONFIG).unwrap()).unwrap();
    let random = RandomSource::new(encoder.segments(), 1);
    let value = |key: String| {
        let shape = random.info(&key).unwrap().shape;
        let seed = key.bytes().map(usize::from).sum();
        let value = match shape.as_slice() {
            [_] => tensor(&shape, seed).affine(0.1, 0.5).unwrap(),
            shape => tensor(shape, seed).affine(1.0 / (shape[1] as f64).sqrt(), 0.0).unwrap(),
        };
        (key, value)
    };
    let source: MapSource = random.keys().into_iter().map(value).collect();
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    encoder
}

#[test]
fn values_are_those_of_transformers() {
    let encoder = encoder();
    let ids: Vec<u32> = (0..9).map(|i| (1 + 7 * i) % 60).collect();
    let padded = Text { length: 9, ..Text::whole([ids.as_slice(), &[0; 3]].concat()) };
    for text in [Text::whole(ids), padded] {
        let found = encoder.encode(&[text], &Device::Cpu).unwrap().remove(0);
        let found: Vec<f32> = found.narrow(1, 0, 9).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for (found, expected) in found.iter().step_by(11).zip(EXPECTED) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}

#[test]
fn biases_take_the_place_of_normalizations() {
    let encoder = encoder();
    let keys: Vec<&str> = encoder.segments().iter().flat_map(Segment::params).map(|param| param.key.as_str()).collect();
    assert_eq!(keys.len(), 2 + 2 * 12);
    let has = |key: &str| keys.contains(&key);
    assert!(has("model.norm.weight") && has("model.layers.1.self_attn.v_proj.bias"));
    assert!(!has("model.layers.1.self_attn.o_proj.bias") && !has("model.layers.1.self_attn.q_norm.weight"));
}
