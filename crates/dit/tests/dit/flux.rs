//! Networks with FLUX.1's blocks and small random weights: batches, types, inputs that count, and inputs that are refused.

use candle_core::{DType, Device, Tensor};
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, REFERENCE, TEXT_EMBEDS, TEXT_LENGTHS};
use kiln_network::{Denoiser, Inputs, Rows, Slot};
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, load};

use crate::common::{build, inputs, networks, tensor};

fn run(network: &dyn Denoiser, x: &Tensor, timesteps: &[f32], inputs: &Inputs) -> Vec<f32> {
    let timesteps = Tensor::new(timesteps, &Device::Cpu).unwrap();
    let y = network.forward(x, &timesteps, inputs).unwrap();
    assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()));
    y.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn message(network: &dyn Denoiser, x: &Tensor, inputs: &Inputs) -> String {
    let timesteps = Tensor::new(&[500f32], &Device::Cpu).unwrap();
    network.forward(x, &timesteps, inputs).unwrap_err().to_string()
}

#[test]
fn an_image_has_the_same_bits_in_any_batch() {
    for (name, config) in networks() {
        let network = build(config.as_ref(), DType::F32);
        let latents = network.latents();
        let x = tensor(&[3, latents.channels, 6, 4], 0);
        let all = inputs(config.as_ref(), latents, [3, 6, 4]);
        let together = run(network.as_ref(), &x, &[700.0], &all);
        assert!(together.iter().all(|value| value.is_finite()), "{name}");
        assert_eq!(run(network.as_ref(), &x, &[700.0; 3], &all), together, "{name}: a timestep for each row");
        let prepared = network.prepare(all.clone()).unwrap();
        assert_eq!(run(network.as_ref(), &x, &[700.0], &prepared), together, "{name}: prepared inputs");
        for (i, expected) in together.chunks(together.len() / 3).enumerate() {
            let own = prepared.rows(i..i + 1).unwrap();
            let found = run(network.as_ref(), &x.narrow(0, i, 1).unwrap(), &[700.0], &own);
            assert_eq!(found, expected, "{name}: image {i}");
        }
        let later = run(network.as_ref(), &x, &[700.0, 700.0, 300.0], &all);
        let two = together.len() / 3 * 2;
        assert!(later[..two] == together[..two] && later[two..] != together[two..], "{name}: another timestep");
    }
}

#[test]
fn every_input_counts() {
    for (name, config) in networks() {
        let network = build(config.as_ref(), DType::F32);
        let latents = network.latents();
        let x = tensor(&[1, latents.channels, 4, 6], 0);
        let all = inputs(config.as_ref(), latents, [1, 4, 6]);
        let base = run(network.as_ref(), &x, &[700.0], &all);
        let other = |slot: Slot, value: Tensor| all.clone().without(slot).with(slot, value);
        let slots = [CONTEXT, TEXT_EMBEDS, TEXT_LENGTHS, GUIDANCE, EXTRA_CHANNELS];
        for slot in slots.into_iter().filter(|slot| all.get(*slot).is_some()) {
            let changed = all.get(slot).unwrap().affine(0.5, 0.1).unwrap();
            let found = run(network.as_ref(), &x, &[700.0], &other(slot, changed));
            assert_ne!(found, base, "{name}: {}", slot.name);
        }
        if latents.extra_channels == 0 {
            let reference = tensor(&[1, latents.channels, 6, 2], 9);
            let one = other(REFERENCE, reference.clone());
            let found = run(network.as_ref(), &x, &[700.0], &one);
            assert_ne!(found, base, "{name}: reference");
            let mut two = one.clone();
            two.add(REFERENCE, 1, reference);
            assert_ne!(run(network.as_ref(), &x, &[700.0], &two), found, "{name}: its index counts");
        }
    }
}

/// A reference that all rows share is that of each row.
#[test]
fn references_may_be_shared() {
    let (_, config) = networks().remove(0);
    let network = build(config.as_ref(), DType::F32);
    let x = tensor(&[2, 16, 4, 4], 0);
    let all = inputs(config.as_ref(), network.latents(), [2, 4, 4]);
    let reference = tensor(&[1, 16, 2, 6], 9);
    let shared = all.clone().with(Slot { rows: Rows::Shared, ..REFERENCE }, reference.clone());
    let each = all.with(REFERENCE, Tensor::cat(&[&reference, &reference], 0).unwrap());
    let run = |inputs: &Inputs| run(network.as_ref(), &x, &[700.0], inputs);
    assert_eq!(run(&shared), run(&each));
}

#[test]
fn half_precision_is_close_and_stays_finite() {
    for (name, config) in networks() {
        let exact = build(config.as_ref(), DType::F32);
        let latents = exact.latents();
        let x = tensor(&[2, latents.channels, 4, 6], 0);
        let all = inputs(config.as_ref(), latents, [2, 4, 6]);
        let expected = run(exact.as_ref(), &x, &[700.0], &all);
        let size = expected.iter().map(|value| value * value).sum::<f32>();
        for (dtype, bound) in [(DType::F16, 3e-3), (DType::BF16, 3e-2)] {
            let network = build(config.as_ref(), dtype);
            let (x, all) = (x.to_dtype(dtype).unwrap(), all.to_dtype(dtype).unwrap());
            let found = run(network.as_ref(), &x, &[700.0], &all);
            let difference = found.iter().zip(&expected).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
            let error = (difference / size).sqrt();
            assert!(error < bound, "{name} {dtype:?}: {error}");
        }
    }
}

/// Residual streams of trained networks leave the range of f16 in some channels.
#[test]
fn large_residuals_stay_finite_in_f16() {
    for (name, config) in networks() {
        let network = config.build();
        let random = RandomSource::new(network.segments(), 1);
        let value = |key: String| {
            let info = random.info(&key).unwrap();
            let gates = ["norm1.linear.bias", "norm1_context.linear.bias", "norm.linear.bias"];
            let values = match () {
                () if key.ends_with("net.2.bias") => {
                    let one_of_three = (0..info.shape[0]).map(|i| if i % 3 == 0 { 50_000f32 } else { 0.0 });
                    Some(Tensor::from_iter(one_of_three, &Device::Cpu).unwrap())
                }
                () if gates.iter().any(|gate| key.ends_with(gate)) => {
                    Some(Tensor::full(1.5f32, info.shape.as_slice(), &Device::Cpu).unwrap())
                }
                () => None,
            };
            let values = match values {
                Some(values) => values,
                None => tensor(&info.shape, key.len()).affine(0.1, 0.0).unwrap(),
            };
            (key, values)
        };
        let source: MapSource = random.keys().into_iter().map(value).collect();
        load(network.segments(), &source, &Placement::new(Device::Cpu, DType::F16)).unwrap();
        let latents = network.latents();
        let x = tensor(&[1, latents.channels, 4, 4], 0).to_dtype(DType::F16).unwrap();
        let all = inputs(config.as_ref(), latents, [1, 4, 4]).to_dtype(DType::F16).unwrap();
        let found = run(network.as_ref(), &x, &[700.0], &all);
        assert!(found.iter().all(|value| value.is_finite()), "{name}: {found:?}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    for (name, config) in networks() {
        let network = build(config.as_ref(), DType::F32);
        let latents = network.latents();
        let x = |h, w| tensor(&[1, latents.channels, h, w], 0);
        let all = |h, w| inputs(config.as_ref(), latents, [1, h, w]);
        for (h, w) in [(5, 4), (4, 7), (0, 4)] {
            let found = message(network.as_ref(), &x(h, w), &all(h, w));
            let expected = format!("`x` has shape [1, 16, {h}, {w}], expected (b, 16, h, w) with even h and w");
            assert!(found.contains(&expected), "{name}: {found}");
        }
        let base = all(4, 4);
        let tensors = [CONTEXT, TEXT_EMBEDS, TEXT_LENGTHS, GUIDANCE, EXTRA_CHANNELS];
        for slot in tensors.into_iter().filter(|slot| base.get(*slot).is_some()) {
            let changed = base.clone().without(slot).with(slot, tensor(&[2, 3, 1], 0));
            let found = message(network.as_ref(), &x(4, 4), &changed);
            assert!(found.contains(&format!("`{}` has shape [2, 3, 1], expected", slot.name)), "{name}: {found}");
            if slot.name != TEXT_LENGTHS.name {
                let found = message(network.as_ref(), &x(4, 4), &base.clone().without(slot));
                assert!(found.contains(&format!("`{}` has shape [], expected", slot.name)), "{name}: {found}");
            }
        }
        let odd = base.clone().with(REFERENCE, tensor(&[1, 16, 3, 4], 0));
        let found = message(network.as_ref(), &x(4, 4), &odd);
        assert!(found.contains("`reference latents` has shape [1, 16, 3, 4], expected"), "{name}: {found}");
        let many = Tensor::new(&[1f32, 2.0, 3.0], &Device::Cpu).unwrap();
        let found = network.forward(&x(4, 4), &many, &base).unwrap_err().to_string();
        assert!(found.contains("`timesteps` has shape [3], expected (1) or (1)"), "{name}: {found}");
    }
}

#[test]
fn networks_are_described_without_their_type() {
    let latents: Vec<_> = networks().iter().map(|(_, config)| config.build().latents()).collect();
    assert!(latents.iter().all(|latents| latents.channels == 16 && latents.multiple == 2));
    let extra: Vec<_> = latents.iter().map(|latents| latents.extra_channels).collect();
    assert_eq!(extra[..4], [0, 0, 16, 80]);
}
