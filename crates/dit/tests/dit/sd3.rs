//! The SD3 transformer with random weights: rows, skipped blocks, prepared inputs, types and refused inputs.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_dit::sd3::{Sd3Config, Sd3Transformer};
use kiln_network::slots::{CONTEXT, SKIPPED_LAYERS, TEXT_EMBEDS};
use kiln_network::{Denoiser, DenoiserConfig, Inputs, StepShape};
use kiln_nn::MetaDevice;
use kiln_nn::ops::Target;
use kiln_weights::{Placement, RandomSource, Residency, Stream, StreamConfig, load};

/// Two blocks with a second attention and a last one, for latents up to 16 rows and columns.
const CONFIG: &str = r#"{"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "caption_projection_dim": 32,
    "joint_attention_dim": 24, "pooled_projection_dim": 12, "pos_embed_max_size": 8, "qk_norm": "rms_norm", "in_channels": 4,
    "out_channels": 4, "dual_attention_layers": [0, 1]}"#;

fn transformer(dtype: DType) -> Sd3Transformer {
    let transformer = Sd3Transformer::new(Sd3Config::from_json(CONFIG).unwrap());
    let source = RandomSource::new(transformer.segments(), 3);
    load(transformer.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    transformer
}

/// Values that do not repeat.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 2.0 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Latents `(b, 4, 6, 10)`, timesteps `(b)` and inputs of `b` rows that differ.
fn step(b: usize) -> (Tensor, Tensor, Inputs) {
    let inputs = Inputs::new().with(CONTEXT, tensor(&[b, 7, 24], 1)).with(TEXT_EMBEDS, tensor(&[b, 12], 2));
    let timesteps: Vec<f32> = (0..b).map(|i| 900.0 - 123.5 * i as f32).collect();
    (tensor(&[b, 4, 6, 10], 3), Tensor::new(timesteps, &Device::Cpu).unwrap(), inputs)
}

fn row(x: &Tensor, i: usize) -> Tensor {
    x.narrow(0, i, 1).unwrap()
}

#[test]
fn rows_of_a_batch_are_those_of_single_runs() {
    let transformer = transformer(DType::F32);
    let (x, timesteps, inputs) = step(3);
    let all = transformer.forward(&x, &timesteps, &inputs).unwrap();
    assert_eq!(all.dims(), [3, 4, 6, 10]);
    for i in 0..3 {
        let one = transformer.forward(&row(&x, i), &row(&timesteps, i), &inputs.rows(i..i + 1).unwrap()).unwrap();
        assert!(values(&row(&all, i)) == values(&one), "row {i} has other bits than a single run");
    }
    assert_ne!(values(&row(&all, 0)), values(&row(&all, 1)));
    // One timestep is that of all rows.
    let times = Tensor::new(&[900f32], &Device::Cpu).unwrap();
    let same = transformer.forward(&x, &times, &inputs).unwrap();
    assert!(values(&row(&same, 0)) == values(&row(&all, 0)) && values(&row(&same, 1)) != values(&row(&all, 1)));
}

/// Neither the size nor the text is lost: each changes the result.
#[test]
fn every_input_changes_the_result() {
    let transformer = transformer(DType::F32);
    let (x, timesteps, inputs) = step(1);
    let usual = values(&transformer.forward(&x, &timesteps, &inputs).unwrap());
    let other = |x: &Tensor, timesteps: &Tensor, inputs: &Inputs| {
        let found = values(&transformer.forward(x, timesteps, inputs).unwrap());
        assert!(found.iter().all(|value| value.is_finite()));
        assert_ne!(found, usual);
    };
    other(&(&x * 1.5).unwrap(), &timesteps, &inputs);
    other(&x, &(&timesteps - 1.0).unwrap(), &inputs);
    other(&x, &timesteps, &inputs.clone().without(CONTEXT).with(CONTEXT, tensor(&[1, 7, 24], 9)));
    other(&x, &timesteps, &inputs.without(TEXT_EMBEDS).with(TEXT_EMBEDS, tensor(&[1, 12], 9)));
}

#[test]
fn prepared_inputs_have_the_same_bits() {
    let transformer = transformer(DType::F32);
    let (x, timesteps, inputs) = step(2);
    let expected = values(&transformer.forward(&x, &timesteps, &inputs).unwrap());
    let denoiser: &dyn Denoiser = &transformer;
    let sized = denoiser.for_size(inputs.clone(), [6, 10]).unwrap();
    assert_eq!(sized.tensors().last().unwrap().dims(), [15, 32]);
    assert!(values(&denoiser.forward(&x, &timesteps, &sized).unwrap()) == expected);
    let prepared = denoiser.prepare(sized.clone()).unwrap();
    assert_eq!(prepared.tensors().count(), sized.tensors().count() + 2);
    assert!(values(&denoiser.forward(&x, &timesteps, &prepared).unwrap()) == expected);
    // Positions belong to a size, even where another has as many tokens.
    let turned = denoiser.for_size(inputs, [10, 6]).unwrap();
    assert_ne!(turned.group_key(2), sized.group_key(2));
}

#[test]
fn the_last_rows_skip_blocks() {
    let transformer = transformer(DType::F32);
    let (x, timesteps, inputs) = step(3);
    let skipping = |inputs: &Inputs, layers: u64, rows: usize| {
        inputs.clone().with_constant(SKIPPED_LAYERS, layers).with_rows(SKIPPED_LAYERS, rows)
    };
    let usual = transformer.forward(&x, &timesteps, &inputs).unwrap();
    for layers in [0b010, 0b100, 0b111] {
        let found = transformer.forward(&x, &timesteps, &skipping(&inputs, layers, 1)).unwrap();
        for i in 0..2 {
            assert!(values(&row(&found, i)) == values(&row(&usual, i)), "row {i} skips no block");
        }
        let alone = skipping(&inputs.rows(2..3).unwrap(), layers, 1);
        let alone = transformer.forward(&row(&x, 2), &row(&timesteps, 2), &alone).unwrap();
        assert!(values(&row(&found, 2)) == values(&alone), "{layers:b}");
        assert_ne!(values(&alone), values(&row(&usual, 2)));
    }
    let none = transformer.forward(&x, &timesteps, &skipping(&inputs, 0b111, 0)).unwrap();
    assert!(values(&none) == values(&usual));
    let message = |inputs: Inputs| transformer.forward(&x, &timesteps, &inputs).unwrap_err().to_string();
    assert!(message(skipping(&inputs, 1 << 3, 1)).contains("numbers of blocks less than 3"));
    assert!(message(skipping(&inputs, 1, 4)).contains("up to 3 rows"));
    assert_eq!(transformer.skippable_layers(), 3);
}

#[test]
fn half_precision_is_close_to_f32() {
    let (x, timesteps, inputs) = step(2);
    let expected = values(&transformer(DType::F32).forward(&x, &timesteps, &inputs).unwrap());
    let scale = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    for (dtype, bound) in [(DType::BF16, 0.1), (DType::F16, 0.02)] {
        let transformer = transformer(dtype);
        let y = transformer.forward(&x.to_dtype(dtype).unwrap(), &timesteps, &inputs.to_dtype(dtype).unwrap()).unwrap();
        assert_eq!(y.dtype(), dtype);
        let worst = values(&y).iter().zip(&expected).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f32::max);
        assert!(worst < bound, "{dtype:?}: {worst} of the deviation");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let transformer = transformer(DType::F32);
    let (x, timesteps, inputs) = step(1);
    let message = |x: &Tensor, timesteps: &Tensor, inputs: &Inputs| {
        transformer.forward(x, timesteps, inputs).map(drop).unwrap_err().to_string()
    };
    let of_size = |h: usize, w: usize| message(&tensor(&[1, 4, h, w], 1), &timesteps, &inputs);
    let odd = of_size(6, 7);
    assert!(odd.contains("the SD3 transformer's input `size of the latents`"), "{odd}");
    assert!(odd.contains("has shape [6, 7], expected multiples of 2"), "{odd}");
    assert!(of_size(6, 18).contains("has shape [6, 18], expected at most (16, 16)"));
    assert!(transformer.forward(&tensor(&[1, 4, 16, 16], 1), &timesteps, &inputs).is_ok());
    assert!(of_size(0, 8).contains("`x`"));
    let denoiser: &dyn Denoiser = &transformer;
    let refused = denoiser.for_size(inputs.clone(), [6, 18]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("at most (16, 16)"), "{refused}");
    assert!(message(&tensor(&[1, 5, 6, 10], 1), &timesteps, &inputs).contains("expected (b, 4, h, w)"));
    assert!(message(&x, &tensor(&[2], 1), &inputs).contains("`timesteps`"));
    let of =
        |slot, shape: &[usize]| message(&x, &timesteps, &inputs.clone().without(slot).with(slot, tensor(shape, 1)));
    assert!(of(CONTEXT, &[1, 7, 25]).contains("`context`"));
    assert!(of(CONTEXT, &[2, 7, 24]).contains("`context`"));
    assert!(of(CONTEXT, &[1, 0, 24]).contains("`context`"));
    assert!(of(TEXT_EMBEDS, &[1, 13]).contains("`text_embeds`"));
    assert!(message(&x, &timesteps, &inputs.clone().without(TEXT_EMBEDS)).contains("`text_embeds`"));
    assert!(message(&x, &timesteps, &Inputs::new()).contains("`context`"));
}

/// Streamed weights have the same bits, and segments run in their order.
#[test]
fn streamed_weights_have_the_same_bits() {
    let (x, timesteps, inputs) = step(2);
    let resident = transformer(DType::F32);
    let expected = values(&resident.forward(&x, &timesteps, &inputs).unwrap());
    resident.segments().unload();
    let placement = Placement::new(Device::Cpu, DType::F32);
    let largest = resident.segments().iter().map(|segment| segment.bytes(DType::F32)).max().unwrap();
    let residency = Residency::none(resident.segments(), &placement, largest).unwrap();
    let config = StreamConfig { residency, pinned: None, host_bytes: u64::MAX, copy_stream: false, pool: None };
    let source = Arc::new(RandomSource::new(resident.segments(), 3));
    let stream = Stream::start(resident.segments(), source, &placement, config).unwrap();
    let denoiser: &dyn Denoiser = &resident;
    let inputs = denoiser.prepare(denoiser.for_size(inputs, [6, 10]).unwrap()).unwrap();
    for pass in 0..2 {
        assert!(values(&denoiser.forward(&x, &timesteps, &inputs).unwrap()) == expected, "pass {pass}");
    }
    assert_eq!(stream.report().unwrap().resets, 0);
}

/// The counts are PyTorch's, with the table of positions.
#[test]
fn real_networks_have_the_known_number_of_parameters() {
    let count = |json: &str| Sd3Transformer::new(Sd3Config::from_json(json).unwrap()).segments().parameters();
    let medium = r#""num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536"#;
    assert_eq!(count(&format!(r#"{{{medium}, "pos_embed_max_size": 192}}"#)), 2_084_951_104);
    let dual =
        r#""pos_embed_max_size": 384, "qk_norm": "rms_norm", "dual_attention_layers": [0,1,2,3,4,5,6,7,8,9,10,11,12]"#;
    assert_eq!(count(&format!("{{{medium}, {dual}}}")), 2_469_663_936);
    let large = r#"{"num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432, "qk_norm": "rms_norm",
        "pos_embed_max_size": 192}"#;
    assert_eq!(count(large), 8_146_280_768);
}

#[test]
fn a_denoiser_is_described_without_its_type() {
    let config = Sd3Config::from_json(CONFIG).unwrap();
    let denoiser = config.build();
    let latents = denoiser.latents();
    assert_eq!((latents.channels, latents.extra_channels, latents.multiple), (4, 0, 2));
    assert!(denoiser.capabilities().controls && !denoiser.capabilities().image_prompts);
    let device = MetaDevice::new(Target::Gpu, DType::F16);
    let inputs = denoiser.meta_inputs(&device, StepShape { rows: 2, height: 8, width: 6, tokens: 9 }, DType::F16);
    let shapes: Vec<Vec<usize>> = inputs.tensors().map(|x| x.dims().to_vec()).collect();
    assert_eq!(shapes, [vec![2, 9, 24], vec![2, 12], vec![12, 32]]);
    assert_eq!(inputs.batch(), 2);
}
