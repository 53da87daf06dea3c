//! Chroma compared with FLUX.1 of equal vectors, and its mask.

use candle_core::{DType, Device, Tensor};
use kiln_network::slots::{CONTEXT, TEXT_EMBEDS, TEXT_LENGTHS};
use kiln_network::{Denoiser, DenoiserConfig, Inputs};
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, load};

use crate::common::{build, inputs, networks, tensor};

fn config(name: &str) -> Box<dyn DenoiserConfig> {
    networks().into_iter().find(|(known, _)| *known == name).unwrap().1
}

fn run(network: &dyn Denoiser, x: &Tensor, inputs: &Inputs) -> Vec<f32> {
    let timesteps = Tensor::new(&[500f32], &Device::Cpu).unwrap();
    network.forward(x, &timesteps, inputs).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Weights by name, the same in both networks. All vectors are those of one bias.
fn with_equal_vectors(config: &dyn DenoiserConfig) -> Box<dyn Denoiser> {
    let network = config.build();
    let random = RandomSource::new(network.segments(), 1);
    let value = |key: String| {
        let shape = random.info(&key).unwrap().shape;
        let makes_vectors = ["norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear", "out_proj"];
        let makes_vectors = makes_vectors.iter().any(|name| key.contains(&format!("{name}.")));
        let value = match (makes_vectors, shape.as_slice()) {
            (true, &[n]) => Tensor::cat(&vec![&tensor(&[64], 77).affine(0.2, 0.0).unwrap(); n / 64], 0).unwrap(),
            (true, shape) => Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap(),
            (false, &[n]) => tensor(&[n], key.len()).affine(0.1, 0.5).unwrap(),
            (false, shape) => {
                let seed = key.bytes().map(usize::from).sum();
                tensor(shape, seed).affine(1.0 / (shape[1] as f64).sqrt(), 0.0).unwrap()
            }
        };
        (key, value)
    };
    let source: MapSource = random.keys().into_iter().map(value).collect();
    load(network.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    network
}

#[test]
fn blocks_are_those_of_flux() {
    let (flux, chroma) =
        (with_equal_vectors(config("schnell").as_ref()), with_equal_vectors(config("Chroma").as_ref()));
    let x = tensor(&[2, 16, 4, 6], 0);
    let of_flux = inputs(config("schnell").as_ref(), flux.latents(), [2, 4, 6]);
    let of_chroma = of_flux.clone().without(TEXT_EMBEDS);
    let found = run(chroma.as_ref(), &x, &of_chroma);
    assert_eq!(found, run(flux.as_ref(), &x, &of_flux));
    assert!(found.iter().any(|value| value.abs() > 0.1), "{found:?}");
}

#[test]
fn masked_tokens_change_nothing() {
    let config = config("Chroma");
    let network = build(config.as_ref(), DType::F32);
    let x = tensor(&[1, 16, 4, 6], 0);
    let lengths = |length: f32| Tensor::new(&[length], &Device::Cpu).unwrap();
    let context = tensor(&[1, 7, 48], 1);
    let masked = |context: &Tensor, length| {
        run(network.as_ref(), &x, &Inputs::new().with(CONTEXT, context.clone()).with(TEXT_LENGTHS, lengths(length)))
    };
    let others = tensor(&[1, 3, 48], 5);
    let other = Tensor::cat(&[&context.narrow(1, 0, 4).unwrap(), &others], 1).unwrap();
    assert_eq!(masked(&context, 4.0), masked(&other, 4.0));
    assert_ne!(masked(&context, 5.0), masked(&other, 5.0));
    let close = |found: &[f32], expected: &[f32]| {
        let largest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(largest < 1e-4, "{largest}");
    };
    // A text without masked tokens is that text alone.
    let short = context.narrow(1, 0, 4).unwrap().contiguous().unwrap();
    let alone = run(network.as_ref(), &x, &Inputs::new().with(CONTEXT, short));
    close(&masked(&context, 4.0), &alone);
    close(&masked(&context, 7.0), &run(network.as_ref(), &x, &Inputs::new().with(CONTEXT, context.clone())));
}
