//! The first-block cache: nothing changes without a skip, images decide alone, and the values and decisions of diffusers.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_dit::sd3::Sd3Config;
use kiln_dit::z_image::ZImageConfig;
use kiln_dit::{Flux2Config, FluxConfig, QwenImageConfig};
use kiln_network::slots::{
    BLOCK_CACHE, CONTEXT, FIRST_RESIDUAL, GUIDANCE, OTHER_RESIDUAL, RESIDUAL_CHANGE, RESIDUAL_TIMES,
    SKIPPED_EVALUATIONS, SKIPPED_LAYERS, TEXT_EMBEDS,
};
use kiln_network::{Denoiser, DenoiserConfig, Inputs, Rows, Slot, StepShape};
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_testkit::{Fixture, Parity, fixtures};
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, Residency, Stream, StreamConfig, load};
use serde_json::Value;

use crate::common::{build, inputs, networks, tensor};

/// Rows and columns of latents.
const SIZE: [usize; 2] = [6, 10];

/// A network of each family.
fn families() -> Vec<(&'static str, Box<dyn DenoiserConfig>)> {
    let sd3 = r#"{"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "caption_projection_dim": 32,
        "joint_attention_dim": 24, "pooled_projection_dim": 12, "pos_embed_max_size": 8, "qk_norm": "rms_norm", "in_channels": 4,
        "out_channels": 4, "dual_attention_layers": [0, 1]}"#;
    let flux2 = r#"{"guidance_embeds": false, "attention_head_dim": 16, "num_attention_heads": 4, "in_channels": 32,
        "axes_dims_rope": [4, 4, 4, 4], "joint_attention_dim": 24, "num_layers": 2, "num_single_layers": 2}"#;
    let z_image = r#"{"dim": 64, "n_heads": 4, "n_kv_heads": 4, "n_layers": 3, "n_refiner_layers": 1, "cap_feat_dim": 24,
        "in_channels": 4, "axes_dims": [4, 6, 6]}"#;
    let qwen = r#"{"in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 3, "joint_attention_dim": 24, "axes_dims_rope": [4, 6, 6]}"#;
    let mut all: Vec<(_, Box<dyn DenoiserConfig>)> = vec![
        ("Stable Diffusion 3", Box::new(Sd3Config::from_json(sd3).unwrap())),
        ("FLUX.2", Box::new(Flux2Config::from_json(flux2).unwrap())),
        ("Z-Image", Box::new(ZImageConfig::from_json(z_image).unwrap())),
        ("Qwen-Image", Box::new(QwenImageConfig::from_json(qwen).unwrap())),
    ];
    all.extend(networks().into_iter().filter(|(name, _)| ["dev", "Fill", "Chroma"].contains(name)));
    all
}

fn bits(x: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// `inputs` with an empty cache for `images` images, which predicts.
fn predicting(network: &dyn Denoiser, inputs: Inputs, dtype: DType, threshold: f64, images: usize) -> Inputs {
    let rows = inputs.batch();
    let shape = StepShape { rows, height: SIZE[0], width: SIZE[1], tokens: 7 };
    let zeros = |slot| Tensor::zeros(&network.state(slot, 0, shape).unwrap(), dtype, &Device::Cpu).unwrap();
    inputs
        .with(RESIDUAL_CHANGE, zeros(RESIDUAL_CHANGE))
        .with(RESIDUAL_TIMES, Tensor::zeros((rows, 2), DType::F32, &Device::Cpu).unwrap())
        .with(FIRST_RESIDUAL, zeros(FIRST_RESIDUAL))
        .with(OTHER_RESIDUAL, zeros(OTHER_RESIDUAL))
        .with(SKIPPED_EVALUATIONS, Tensor::zeros(rows, DType::F32, &Device::Cpu).unwrap())
        .with_constant(BLOCK_CACHE, threshold.to_bits())
        .with_rows(BLOCK_CACHE, images)
}

/// [`predicting`] without the prediction.
fn cached(network: &dyn Denoiser, inputs: Inputs, dtype: DType, threshold: f64, images: usize) -> Inputs {
    predicting(network, inputs, dtype, threshold, images).without(RESIDUAL_CHANGE).without(RESIDUAL_TIMES)
}

fn skipped(inputs: &Inputs) -> Vec<f32> {
    inputs.get(SKIPPED_EVALUATIONS).unwrap().to_vec1().unwrap()
}

/// A network of each family, with the inputs of `b` rows that were prepared.
fn prepared(b: usize, dtype: DType) -> Vec<(&'static str, Box<dyn Denoiser>, Inputs)> {
    let of = |(name, config): (_, Box<dyn DenoiserConfig>)| {
        let network = build(config.as_ref(), dtype);
        let all = inputs(config.as_ref(), network.latents(), [b, SIZE[0], SIZE[1]]).to_dtype(dtype).unwrap();
        (name, network, all)
    };
    families().into_iter().map(of).collect()
}

/// Latents of `b` rows at evaluation `k`, which change a little from one to the next, and the timestep.
fn evaluation(network: &dyn Denoiser, b: usize, dtype: DType, k: usize) -> (Tensor, Tensor) {
    let channels = network.latents().channels;
    let drift = (tensor(&[b, channels, SIZE[0], SIZE[1]], 9) * (0.03 * k as f64)).unwrap();
    let x = (tensor(&[b, channels, SIZE[0], SIZE[1]], 5) + drift).unwrap();
    (x.to_dtype(dtype).unwrap(), Tensor::new(&[900.0 - 20.0 * k as f32], &Device::Cpu).unwrap())
}

#[test]
fn a_threshold_of_zero_changes_no_bit() {
    for dtype in [DType::F32, DType::BF16] {
        for (name, network, inputs) in prepared(2, dtype) {
            let inputs = network.prepare(inputs).unwrap();
            let cached = cached(&*network, inputs.clone(), dtype, 0.0, 1);
            for k in 0..3 {
                let (x, timesteps) = evaluation(&*network, 2, dtype, k / 2); // the second one is the first one again
                let [plain, found] = [&inputs, &cached].map(|all| network.forward(&x, &timesteps, all).unwrap());
                assert!(bits(&plain) == bits(&found), "{name} {dtype:?} {k}");
            }
            assert_eq!(skipped(&cached), [0.0, 0.0], "{name}");
        }
    }
}

/// With a threshold that all are below, the first evaluation has all blocks and no other one has. The same latents again give what
/// all blocks gave, but for rounding.
#[test]
fn other_blocks_are_skipped_below_the_threshold() {
    for (name, network, inputs) in prepared(2, DType::F32) {
        // As the engine runs it.
        let network = network.with_controls(Vec::new()).unwrap();
        let inputs = network.prepare(inputs).unwrap();
        let cached = cached(&*network, inputs.clone(), DType::F32, 9.0, 1);
        for k in 0..4 {
            let (x, timesteps) = evaluation(&*network, 2, DType::F32, k / 2);
            let [plain, found] = [&inputs, &cached].map(|all| network.forward(&x, &timesteps, all).unwrap());
            let error = ((&plain - &found).unwrap().abs().unwrap().max_all().unwrap() / 1.0).unwrap();
            let error = error.to_scalar::<f32>().unwrap();
            match k {
                0 => assert!(bits(&plain) == bits(&found), "{name}: all blocks"),
                1 => assert!(error < 1e-4 && bits(&plain) != bits(&found), "{name}: {error}"),
                _ => assert!(error > 1e-4, "{name}: {error}: the blocks ran"),
            }
        }
        assert_eq!(skipped(&cached), [3.0, 3.0], "{name}");
    }
}

/// Skipped blocks go on as they went on between the last two evaluations with all blocks.
#[test]
fn skipped_blocks_are_predicted_on_a_line() {
    for (name, network, inputs) in prepared(2, DType::F32) {
        let base = network.prepare(inputs).unwrap();
        let run = |all: &Inputs, k: usize| {
            let (x, timesteps) = evaluation(&*network, 2, DType::F32, k);
            network.forward(&x, &timesteps, all).unwrap()
        };
        let of = |all: &Inputs, slot: Slot| all.get(slot).unwrap().copy().unwrap();
        // A threshold of 0 has all blocks.
        let whole = predicting(&*network, base.clone(), DType::F32, 0.0, 1);
        run(&whole, 0);
        let before = of(&whole, OTHER_RESIDUAL);
        run(&whole, 1);
        let last = of(&whole, OTHER_RESIDUAL);
        assert_eq!(of(&whole, RESIDUAL_TIMES).to_vec2::<f32>().unwrap(), [[880.0, 900.0]; 2], "{name}");
        let skips = |cached: Inputs, values: &[(Slot, Tensor)]| {
            values.iter().for_each(|(slot, value)| cached.get(*slot).unwrap().slice_set(value, 0, 0).unwrap());
            let y = run(&cached, 4);
            assert_eq!(skipped(&cached), [1.0, 1.0], "{name}");
            y
        };
        let first = (FIRST_RESIDUAL, of(&whole, FIRST_RESIDUAL));
        let kept = |others: &Tensor| {
            let cached = cached(&*network, base.clone(), DType::F32, 9.0, 1);
            skips(cached, &[first.clone(), (OTHER_RESIDUAL, others.clone())])
        };
        let values = [OTHER_RESIDUAL, RESIDUAL_CHANGE, RESIDUAL_TIMES].map(|slot| (slot, of(&whole, slot)));
        let predicts = predicting(&*network, base.clone(), DType::F32, 9.0, 1);
        let found = skips(predicts, &[vec![first.clone()], values.to_vec()].concat());
        // Three steps further.
        let line = (&last + ((&last - &before).unwrap() * 3.0).unwrap()).unwrap();
        let off = |expected: Tensor| {
            (&found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap()
        };
        let (error, far) = (off(kept(&line)), off(kept(&last)));
        assert!(error < 1e-3 && far > 10.0 * error, "{name}: {error}, without prediction {far}");
    }
}

/// The rows of image `i` among those of two images: without and with its prompt.
fn of_image(inputs: &Inputs, i: usize) -> Inputs {
    let rows = Tensor::new(&[i as u32, i as u32 + 2], &Device::Cpu).unwrap();
    let of = |slot: &Slot, x: &Tensor| match slot.rows {
        Rows::Shared => Ok::<_, candle_core::Error>(x.clone()),
        Rows::Each | Rows::Last => x.index_select(&rows, 0),
    };
    inputs.map(of).unwrap()
}

/// Two images with two rows each: one skips where the other one does not, and each has the bits that it has alone.
#[test]
fn images_of_a_batch_decide_alone() {
    for (name, network, inputs) in prepared(4, DType::F32) {
        let run = |inputs: Inputs, images: &[usize]| {
            let inputs = network.prepare(inputs).unwrap();
            let cached = predicting(&*network, inputs, DType::F32, 0.01, images.len());
            let of = |k: usize| {
                // Image 0 stays, image 1 becomes another one.
                let latents = |i: usize| {
                    let (channels, moved) = (network.latents().channels, if i == 0 { 0 } else { k });
                    tensor(&[1, channels, SIZE[0], SIZE[1]], 20 + 10 * i + moved)
                };
                let rows: Vec<Tensor> = images.iter().chain(images).map(|&i| latents(i)).collect();
                let x = Tensor::cat(&rows, 0).unwrap();
                let timesteps: Vec<f32> = images.iter().chain(images).map(|&i| 700.0 - 50.0 * i as f32).collect();
                network.forward(&x, &Tensor::new(timesteps, &Device::Cpu).unwrap(), &cached).unwrap()
            };
            let results: Vec<Tensor> = (0..3).map(of).collect();
            (results, skipped(&cached))
        };
        let (both, count) = run(inputs.clone(), &[0, 1]);
        assert_eq!(count, [2.0, 0.0, 2.0, 0.0], "{name}");
        for i in 0..2 {
            let (alone, count) = run(of_image(&inputs, i), &[i]);
            assert_eq!(count, [[2.0, 2.0], [0.0, 0.0]][i], "{name}");
            for (k, (both, alone)) in both.iter().zip(&alone).enumerate() {
                for (row, own) in [(i, 0), (i + 2, 1)] {
                    let [found, expected] = [(both, row), (alone, own)].map(|(x, row)| x.narrow(0, row, 1).unwrap());
                    assert!(bits(&found) == bits(&expected), "{name}: image {i}, evaluation {k}, row {row}");
                }
            }
        }
    }
}

/// Rows of skip-layer guidance are the last ones, also among those that run.
#[test]
fn rows_that_leave_out_layers_decide_with_their_image() {
    let (name, network, inputs) = prepared(4, DType::F32).remove(0);
    let run = |inputs: Inputs, images: usize| {
        let inputs = network.prepare(inputs.with_constant(SKIPPED_LAYERS, 0b10).with_rows(SKIPPED_LAYERS, images));
        let cached = cached(&*network, inputs.unwrap(), DType::F32, 0.01, images);
        let of = |k: usize| {
            let latents: Vec<Tensor> = (0..2 * images).map(|row| tensor(&[1, 4, 6, 10], row % images * k)).collect();
            let timesteps = Tensor::new(&[700f32], &Device::Cpu).unwrap();
            network.forward(&Tensor::cat(&latents, 0).unwrap(), &timesteps, &cached).unwrap()
        };
        (0..3).map(of).last().unwrap()
    };
    let both = run(inputs.clone(), 2);
    // Image 0 has the latents of an image alone.
    let alone = run(of_image(&inputs, 0), 1);
    for (row, own) in [(0, 0), (2, 1)] {
        let [found, expected] = [(&both, row), (&alone, own)].map(|(x, row)| x.narrow(0, row, 1).unwrap());
        assert!(bits(&found) == bits(&expected), "{name}: row {row}");
    }
}

/// Weights of skipped blocks are not waited for, and the ring goes on.
#[test]
fn streamed_weights_give_the_same_bits() {
    for ((name, network, inputs), (_, streamed, _)) in prepared(1, DType::F32).into_iter().zip(prepared(1, DType::F32))
    {
        let segments = streamed.segments();
        segments.unload();
        let largest = segments.iter().map(|segment| segment.bytes(DType::F32)).max().unwrap();
        let placement = Placement::new(Device::Cpu, DType::F32);
        let residency = Residency::none(segments, &placement, 2 * largest).unwrap();
        let config = StreamConfig { residency, pinned: None, host_bytes: u64::MAX, copy_stream: false, pool: None };
        let source = Arc::new(RandomSource::new(segments, 1));
        let _stream = Stream::start(segments, source, &placement, config).unwrap();
        let run = |network: &dyn Denoiser| {
            let inputs = network.prepare(inputs.clone()).unwrap();
            let cached = predicting(network, inputs, DType::F32, 0.001, 1);
            let of = |k: usize| {
                // Every second one is the one before again.
                let (x, timesteps) = evaluation(network, 1, DType::F32, 10 * (k / 2));
                bits(&network.forward(&x, &timesteps, &cached).unwrap())
            };
            let all: Vec<_> = (0..6).map(of).collect();
            (all, skipped(&cached))
        };
        let (expected, count) = run(&*network);
        assert_eq!(count, [3.0], "{name}");
        assert!(run(&*streamed) == (expected, count), "{name}");
    }
}

/// A plan runs all blocks, whose operations and results are those without the cache.
#[test]
fn plans_have_room_for_all_blocks() {
    for (name, config) in families() {
        let network = config.build();
        let device = MetaDevice::new(Target::of(&Device::Cpu), DType::BF16);
        let shape = StepShape { rows: 2, height: SIZE[0], width: SIZE[1], tokens: 7 };
        let plain = network.prepare(network.meta_inputs(&device, shape, DType::BF16)).unwrap();
        let x = device.tensor(&[2, network.latents().channels, SIZE[0], SIZE[1]], DType::BF16);
        let timesteps = device.tensor(&[1], DType::F32);
        let run = |inputs: &Inputs<MetaTensor>| {
            device.take_flop();
            let y = network.forward(&x, &timesteps, inputs).unwrap();
            (y.dims().to_vec(), device.take_flop().total())
        };
        let residual = |slot| device.tensor(&network.state(slot, 0, shape).unwrap(), DType::BF16);
        let cached = plain.clone().with(FIRST_RESIDUAL, residual(FIRST_RESIDUAL));
        let cached = cached.with(OTHER_RESIDUAL, residual(OTHER_RESIDUAL));
        let cached = cached.with(SKIPPED_EVALUATIONS, device.tensor(&[2], DType::F32));
        let cached = cached.with_constant(BLOCK_CACHE, 0).with_rows(BLOCK_CACHE, 1);
        assert_eq!(run(&cached), run(&plain), "{name}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    for (name, network, inputs) in prepared(2, DType::F32) {
        let (x, timesteps) = evaluation(&*network, 2, DType::F32, 0);
        let message = |inputs: Inputs| network.forward(&x, &timesteps, &inputs).unwrap_err().to_string();
        let whole = || cached(&*network, inputs.clone(), DType::F32, 0.1, 1);
        for slot in [FIRST_RESIDUAL, OTHER_RESIDUAL, SKIPPED_EVALUATIONS] {
            let found = message(whole().without(slot));
            assert!(found.contains(&format!("input `{}` has shape []", slot.name)), "{name}: {found}");
            let found = message(whole().without(slot).with(slot, tensor(&[1], 0)));
            assert!(found.contains(&format!("input `{}` has shape [1]", slot.name)), "{name}: {found}");
        }
        let found = message(cached(&*network, inputs.clone(), DType::F32, 0.1, 3));
        assert!(found.contains("`block cache` has shape [3], expected a number of images that divides 2"), "{found}");
    }
}

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// Latents after all steps of Euler, and which evaluations had all blocks, as `tests/reference/block_cache.py` makes them with
/// diffusers.
#[test]
fn flux_has_the_latents_and_decisions_of_diffusers() {
    let rows: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(fixtures("block_cache.json")).unwrap()).unwrap();
    let results = Fixture::open("block_cache.safetensors");
    let parity = Parity::new("block_cache", "flux f32");
    let config = FluxConfig::from_json(
        r#"{"attention_head_dim": 16, "num_attention_heads": 4, "axes_dims_rope": [4, 6, 6], "joint_attention_dim": 48,
            "pooled_projection_dim": 24, "num_layers": 2, "num_single_layers": 2, "guidance_embeds": true, "in_channels": 16}"#,
    )
    .unwrap();
    let network = config.build();
    let random = RandomSource::new(network.segments(), 1);
    let value = |key: String| {
        let shape = random.info(&key).unwrap().shape;
        let made = tensor(&shape, key.bytes().map(usize::from).sum());
        let value = match shape.as_slice() {
            [_] => made.affine(0.1, 0.5).unwrap(),
            shape => made.affine(1.0 / (shape[1] as f64).sqrt(), 0.0).unwrap(),
        };
        (key, value)
    };
    let source: MapSource = random.keys().into_iter().map(value).collect();
    load(network.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let number = |value: f64| Tensor::new(&[value as f32], &Device::Cpu).unwrap();
    let mut shares = Vec::new();
    for row in rows.iter().filter(|row| row["kind"] == "flux") {
        let (name, steps) = (row["name"].as_str().unwrap(), row["steps"].as_u64().unwrap() as usize);
        let guidance = row["guidance"].as_f64().unwrap();
        let inputs = Inputs::new().with(CONTEXT, tensor(&[1, 7, 48], 1)).with(TEXT_EMBEDS, tensor(&[1, 24], 2));
        let inputs = network.prepare(inputs.with(GUIDANCE, number(1000.0 * guidance))).unwrap();
        let inputs = match row["threshold"].as_f64() {
            Some(threshold) => cached(&*network, inputs, DType::F32, threshold, 1),
            None => inputs,
        };
        let (mut x, mut whole, mut before) = (tensor(&[1, 4, SIZE[0], SIZE[1]], 3), Vec::new(), 0.0);
        for step in 0..steps {
            let level = 1.0 - step as f64 / steps as f64;
            let velocity = network.forward(&x, &number(1000.0 * level), &inputs).unwrap();
            x = (x - (velocity / steps as f64).unwrap()).unwrap();
            if row["threshold"].is_f64() {
                let now = skipped(&inputs)[0];
                whole.push(now == before);
                before = now;
            }
        }
        let expected: Vec<bool> = serde_json::from_value(row["whole"].clone()).unwrap();
        assert_eq!(whole, expected, "{name}");
        parity.check(name, &x, &results.tensor(name), BOUND);
        shares.extend(row["threshold"].is_f64().then_some(before));
    }
    assert!(shares.len() > 3 && shares[0] == 0.0 && shares.is_sorted() && shares[1] < shares[3], "{shares:?}");
}
