//! FLUX.2's transformer with random weights: batches, references, sizes, and inputs that do not fit.

use candle_core::{DType, Device, Tensor};
use kiln_dit::{Flux2Config, Flux2Transformer};
use kiln_network::slots::{CONTEXT, REFERENCE};
use kiln_network::{Denoiser, Forward, Inputs, StepShape};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::{Placement, RandomSource, load};

use crate::common::tensor;

const CONFIG: &str = r#"{"guidance_embeds": false, "attention_head_dim": 16, "num_attention_heads": 4, "in_channels": 32,
    "axes_dims_rope": [4, 4, 4, 4], "joint_attention_dim": 24, "num_layers": 2, "num_single_layers": 2}"#;

fn network(dtype: DType) -> Flux2Transformer {
    let network = Flux2Transformer::new(Flux2Config::from_json(CONFIG).unwrap());
    let source = RandomSource::new(network.segments(), 3);
    load(network.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    network
}

fn timesteps() -> Tensor {
    Tensor::new(&[600f32], &Device::Cpu).unwrap()
}

fn run(network: &Flux2Transformer, x: &Tensor, inputs: Inputs) -> Tensor {
    let inputs = network.prepare(inputs).unwrap();
    network.forward(x, &timesteps(), &inputs).unwrap()
}

fn bits(x: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn each_image_of_a_batch_equals_its_single_run() {
    for dtype in [DType::F32, DType::BF16] {
        let network = network(dtype);
        let x = tensor(&[2, 32, 3, 5], 0).to_dtype(dtype).unwrap();
        let context = tensor(&[2, 7, 24], 1).to_dtype(dtype).unwrap();
        let reference = tensor(&[2, 32, 2, 2], 2).to_dtype(dtype).unwrap();
        for references in [0, 1] {
            let inputs = |row: Option<usize>| {
                let of = |x: &Tensor| row.map_or(x.clone(), |i| x.narrow(0, i, 1).unwrap());
                let inputs = Inputs::new().with(CONTEXT, of(&context));
                if references == 0 { inputs } else { inputs.with(REFERENCE, of(&reference)) }
            };
            let found = run(&network, &x, inputs(None));
            assert_eq!((found.dims(), found.dtype()), (x.dims(), dtype));
            for i in 0..2 {
                let single = run(&network, &x.narrow(0, i, 1).unwrap(), inputs(Some(i)));
                assert_eq!(bits(&single), bits(&found.narrow(0, i, 1).unwrap().contiguous().unwrap()), "{dtype:?}");
            }
        }
    }
}

#[test]
fn references_and_the_order_of_words_matter() {
    let network = network(DType::F32);
    let (x, text) = (tensor(&[1, 32, 3, 5], 0), tensor(&[1, 7, 24], 1));
    let plain = run(&network, &x, Inputs::new().with(CONTEXT, text.clone()));
    let mut inputs = Inputs::new().with(CONTEXT, text.clone());
    inputs.add(REFERENCE, 0, tensor(&[1, 32, 2, 2], 2));
    let one = run(&network, &x, inputs.clone());
    inputs.add(REFERENCE, 1, tensor(&[1, 32, 2, 2], 2));
    let two = run(&network, &x, inputs);
    assert!(bits(&plain) != bits(&one) && bits(&one) != bits(&two), "a reference has a position of its own");
    let parts = [text.narrow(1, 3, 4).unwrap(), text.narrow(1, 0, 3).unwrap()];
    let turned = Inputs::new().with(CONTEXT, Tensor::cat(&parts, 1).unwrap());
    let difference = (run(&network, &x, turned) - &plain).unwrap().abs().unwrap().mean_all().unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() > 1e-4);
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let network = network(DType::F32);
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
    let shape = StepShape { rows: 2, height: 3, width: 5, tokens: 7 };
    let meta = network.prepare(network.meta_inputs(&device, shape, DType::F32)).unwrap();
    let real = network.prepare(Inputs::new().with(CONTEXT, tensor(&[2, 7, 24], 1))).unwrap();
    assert_eq!(meta.key(), real.key());
    let x = device.tensor(&[2, 32, 3, 5], DType::F32);
    let found: MetaTensor = network.forward(&x, &device.tensor(&[1], DType::F32), &meta).unwrap();
    assert_eq!(found.dims(), [2, 32, 3, 5]);
    assert!(device.take_flop().total() > 0.0);
    assert_eq!(network.with_controls(Vec::new()).unwrap().latents(), network.latents());
    assert_eq!((network.latents().multiple, network.latents().channels), (1, 32));
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let network = network(DType::F32);
    let context = || Inputs::new().with(CONTEXT, tensor(&[1, 7, 24], 1));
    for (x, inputs, expected) in [
        (&[1, 16, 3, 5][..], context(), "`x` has shape [1, 16, 3, 5]"),
        (&[2, 32, 3, 5], context(), "`context` has shape [1, 7, 24], expected (2, s, 24)"),
        (&[1, 32, 3, 5], Inputs::new(), "`context` has shape []"),
        (&[1, 32, 3, 5], context().with(REFERENCE, tensor(&[1, 16, 2, 2], 2)), "`reference latents` has shape"),
    ] {
        let found = network.forward(&tensor(x, 0), &timesteps(), &inputs).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}");
    }
}
