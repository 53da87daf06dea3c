//! Qwen-Image's transformer: values of diffusers, batches, texts of unequal length, plans, and inputs that do not fit.

use candle_core::{DType, Device, Tensor};
use kiln_dit::{QwenImageConfig, QwenImageTransformer};
use kiln_network::slots::{CONTEXT, REFERENCE, TEXT_LENGTHS};
use kiln_network::{Denoiser, Forward, Inputs, StepShape};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_testkit::Fixture;
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, load};

use crate::common::tensor;

const CONFIG: &str = r#"{"in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
    "num_attention_heads": 3, "joint_attention_dim": 24, "axes_dims_rope": [4, 6, 6]}"#;

/// Every 23rd value of diffusers' `QwenImageTransformer2DModel` (0.42.1) in f32 with the weights, latents, text and mask below.
const EXPECTED: [f32; 21] = [
    1.839189, -0.463198, 2.329296, 0.011944, 1.042632, 0.326599, -0.946325, 1.260899, 1.733314, -1.286862, 0.071332,
    1.35572, 1.087595, 1.774485, -0.878341, 0.641495, 1.448868, 0.238041, -1.261415, 3.122564, 1.708861,
];

fn network() -> QwenImageTransformer {
    network_of(CONFIG)
}

fn network_of(config: &str) -> QwenImageTransformer {
    let network = QwenImageTransformer::new(QwenImageConfig::from_json(config).unwrap());
    let random = RandomSource::new(network.segments(), 1);
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
    load(network.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    network
}

fn inputs(lengths: &[f32]) -> Inputs {
    let lengths_of = Tensor::new(lengths, &Device::Cpu).unwrap();
    Inputs::new().with(CONTEXT, tensor(&[lengths.len(), 7, 24], 1)).with(TEXT_LENGTHS, lengths_of)
}

fn run(network: &QwenImageTransformer, x: &Tensor, inputs: Inputs) -> Vec<f32> {
    let inputs = network.prepare(inputs).unwrap();
    let timesteps = Tensor::new(&[600f32], &Device::Cpu).unwrap();
    network.forward(x, &timesteps, &inputs).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn values_are_those_of_diffusers() {
    let found = run(&network(), &tensor(&[2, 4, 6, 10], 0), inputs(&[5.0, 7.0]));
    for (found, expected) in found.iter().step_by(23).zip(EXPECTED) {
        assert!((found - expected).abs() < 2e-5, "{found} {expected}");
    }
}

/// The network of `tests/reference/qwen_edit.py`.
fn editing_network(zero_cond_t: bool) -> QwenImageTransformer {
    let config = format!(
        r#"{{"in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
            "joint_attention_dim": 32, "axes_dims_rope": [4, 6, 6], "zero_cond_t": {zero_cond_t}}}"#
    );
    network_of(&config)
}

/// Two references of their own sizes, of which the first is that of both rows.
fn editing_inputs() -> Inputs {
    let lengths = Tensor::new(&[5f32, 7.0], &Device::Cpu).unwrap();
    let mut inputs = Inputs::new().with(CONTEXT, tensor(&[2, 7, 32], 1)).with(TEXT_LENGTHS, lengths);
    inputs.add(REFERENCE, 0, tensor(&[1, 4, 8, 4], 2));
    inputs.add(REFERENCE, 1, tensor(&[2, 4, 2, 6], 3));
    inputs
}

#[test]
fn references_are_those_of_diffusers() {
    let fixture = Fixture::open("qwen_edit/values.safetensors");
    for (name, zero_cond_t) in [("references", false), ("zero_cond_t", true)] {
        let network = editing_network(zero_cond_t);
        let found = run(&network, &tensor(&[2, 4, 6, 10], 0), editing_inputs());
        let expected: Vec<f32> = fixture.tensor(name).flatten_all().unwrap().to_vec1().unwrap();
        let largest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(found.len() == expected.len() && largest < 2e-5, "{name}: {largest}");
    }
}

#[test]
fn an_image_has_the_same_values_alone_and_in_a_batch() {
    let (network, x) = (network(), tensor(&[2, 4, 6, 10], 0));
    let both = run(&network, &x, inputs(&[5.0, 7.0]));
    let first = x.narrow(0, 0, 1).unwrap().contiguous().unwrap();
    assert_eq!(both[..240], run(&network, &first, inputs(&[5.0])));
    // Masked tokens are no part of the text.
    let text = tensor(&[2, 7, 24], 1).narrow(0, 0, 1).unwrap().narrow(1, 0, 5).unwrap().contiguous().unwrap();
    let alone = run(&network, &first, Inputs::new().with(CONTEXT, text));
    let largest = both.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(largest < 1e-5, "{largest}");
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let network = network();
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
    let shape = StepShape { rows: 2, height: 6, width: 10, tokens: 7 };
    let inputs = network.meta_inputs(&device, shape, DType::F32);
    let timesteps = device.tensor(&[1], DType::F32);
    let y: MetaTensor = network.forward(&device.tensor(&[2, 4, 6, 10], DType::F32), &timesteps, &inputs).unwrap();
    assert_eq!(y.dims(), [2, 4, 6, 10]);
    let mut inputs = inputs;
    inputs.add(REFERENCE, 0, device.tensor(&[2, 4, 8, 4], DType::F32));
    let y: MetaTensor = network.forward(&device.tensor(&[2, 4, 6, 10], DType::F32), &timesteps, &inputs).unwrap();
    assert_eq!(y.dims(), [2, 4, 6, 10]);
    assert!(device.take_flop().total() > 0.0);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let network = network();
    let timesteps = Tensor::new(&[600f32], &Device::Cpu).unwrap();
    let refused = |x: &Tensor, inputs: &Inputs, expected: &str| {
        let message = network.forward(x, &timesteps, inputs).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    let x = tensor(&[1, 4, 6, 10], 0);
    refused(&tensor(&[1, 4, 5, 10], 0), &inputs(&[7.0]), "Qwen-Image transformer's input `x`");
    refused(&x, &inputs(&[7.0, 7.0]), "expected (1, s, 24)");
    refused(&x, &Inputs::new(), "expected (b, s, d)");
    refused(&x, &inputs(&[7.0]).with(REFERENCE, tensor(&[1, 4, 5, 10], 0)), "input `reference latents`");
}
