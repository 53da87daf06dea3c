//! Z-Image's transformer with random weights: batches, texts of unequal length, sizes, and inputs that do not fit.

use candle_core::{DType, Device, Tensor};
use kiln_dit::z_image::{ZImageConfig, ZImageTransformer};
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_network::{Denoiser, Forward, Inputs, StepShape};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::{Placement, RandomSource, load};

use crate::common::tensor;

const CONFIG: &str = r#"{"dim": 64, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "n_refiner_layers": 1, "cap_feat_dim": 24,
    "in_channels": 4, "axes_dims": [4, 6, 6]}"#;

fn network(dtype: DType) -> ZImageTransformer {
    let network = ZImageTransformer::new(ZImageConfig::from_json(CONFIG).unwrap());
    let source = RandomSource::new(network.segments(), 3);
    load(network.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    network
}

fn lengths(lengths: &[f32]) -> Tensor {
    Tensor::new(lengths, &Device::Cpu).unwrap()
}

fn timesteps() -> Tensor {
    Tensor::new(&[600f32], &Device::Cpu).unwrap()
}

fn run(network: &ZImageTransformer, x: &Tensor, inputs: Inputs) -> Tensor {
    let inputs = network.prepare(inputs).unwrap();
    network.forward(x, &timesteps(), &inputs).unwrap()
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_dtype(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1::<f32>()
        .unwrap()
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

/// Each image of a batch equals its single run, whose text has no rows behind it.
#[test]
fn texts_of_unequal_length_share_a_batch() {
    for dtype in [DType::F32, DType::BF16] {
        let network = network(dtype);
        let x = tensor(&[3, 4, 6, 10], 0).to_dtype(dtype).unwrap();
        let context = tensor(&[3, 96, 24], 1).to_dtype(dtype).unwrap();
        let counts = [33usize, 7, 64];
        let all = Inputs::new().with(CONTEXT, context.clone()).with(TEXT_LENGTHS, lengths(&counts.map(|n| n as f32)));
        let found = run(&network, &x, all.clone());
        assert_eq!((found.dims(), found.dtype()), (x.dims(), dtype));
        let unprepared = network.forward(&x, &timesteps(), &all).unwrap();
        assert_eq!(bits(&unprepared), bits(&found));
        for (i, count) in counts.into_iter().enumerate() {
            let row = |x: &Tensor| x.narrow(0, i, 1).unwrap();
            let text = row(&context).narrow(1, 0, count).unwrap().contiguous().unwrap();
            let single = run(&network, &row(&x), Inputs::new().with(CONTEXT, text.clone()));
            assert_eq!(bits(&single), bits(&row(&found).contiguous().unwrap()), "{i} {dtype:?}");
            let total = count.next_multiple_of(32);
            let text = row(&context).narrow(1, 0, total).unwrap().contiguous().unwrap();
            let inputs = Inputs::new().with(CONTEXT, text).with(TEXT_LENGTHS, lengths(&[count as f32]));
            assert_eq!(bits(&run(&network, &row(&x), inputs)), bits(&single), "{i} {dtype:?}");
        }
    }
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let network = network(DType::F32);
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
    let shape = StepShape { rows: 2, height: 6, width: 10, tokens: 32 };
    let meta = network.prepare(network.meta_inputs(&device, shape, DType::F32)).unwrap();
    let real = Inputs::new().with(CONTEXT, tensor(&[2, 32, 24], 1)).with(TEXT_LENGTHS, lengths(&[5.0, 32.0]));
    let real = network.prepare(real).unwrap();
    assert_eq!(meta.key(), real.key());
    let x = device.tensor(&[2, 4, 6, 10], DType::F32);
    let found: MetaTensor = network.forward(&x, &device.tensor(&[1], DType::F32), &meta).unwrap();
    assert_eq!(found.dims(), [2, 4, 6, 10]);
    assert!(device.take_flop().total() > 0.0);
    assert_eq!(network.with_controls(Vec::new()).unwrap().latents(), network.latents());
    assert_eq!(network.latents().multiple, 2);
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let network = network(DType::F32);
    let context = || Inputs::new().with(CONTEXT, tensor(&[1, 7, 24], 1));
    let message =
        |x: &[usize], inputs: &Inputs| network.forward(&tensor(x, 0), &timesteps(), inputs).unwrap_err().to_string();
    for (x, inputs, expected) in [
        (&[1, 4, 6, 9][..], context(), "`x` has shape [1, 4, 6, 9]"),
        (&[1, 3, 6, 10], context(), "`x` has shape [1, 3, 6, 10]"),
        (&[2, 4, 6, 10], context(), "`context` has shape [1, 7, 24], expected (2, s, 24)"),
        (&[1, 4, 6, 10], Inputs::new(), "`context` has shape []"),
        (&[1, 4, 6, 10], context().with(TEXT_LENGTHS, lengths(&[1.0, 2.0])), "`text lengths` has shape [2]"),
    ] {
        let found = message(x, &inputs);
        assert!(found.contains(expected), "{found}");
    }
}
