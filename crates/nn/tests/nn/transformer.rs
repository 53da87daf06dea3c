//! Layers of diffusion transformers and their text encoders compared with the same formulas in candle's primitives.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Tensor};
use kiln_nn::ops::{Activation, GroupedAttention, RopePairs};
use kiln_nn::{GatedFeedForward, Mlp, Modulation, Operators, RmsNorm, Rope, RopeTables, TensorLike, modulate};
use kiln_weights::{MapSource, ParamBuilder, Placement, SegmentModule, Segments, load};

/// The largest difference in f32 with another summation order, for values of about 1.
const ROUNDING: f32 = 2e-5;

/// Values between -1 and 1 that do not repeat, from a low-discrepancy sequence.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 2.0 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A layer with weights, and the weights by name.
fn layer<M>(build: impl FnOnce(&ParamBuilder<'_>) -> M) -> (SegmentModule<M>, HashMap<String, Tensor>) {
    let mut segments = Segments::default();
    let module = segments.add("layer", build);
    let weight = |(seed, param): (usize, &kiln_weights::ParamSpec)| {
        let inputs = param.shape[1..].iter().product::<usize>().max(1) as f64;
        (param.key.clone(), (tensor(&param.shape, seed) / inputs.sqrt()).unwrap())
    };
    let weights: HashMap<_, _> = segments[0].params().iter().enumerate().map(weight).collect();
    load(&segments, &MapSource::from_iter(weights.clone()), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    (module, weights)
}

fn linear(x: &Tensor, weight: &Tensor) -> Tensor {
    x.broadcast_matmul(&weight.t().unwrap()).unwrap()
}

fn rms(x: &Tensor, eps: f64) -> Tensor {
    let square = (x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + eps).unwrap();
    x.broadcast_div(&square.sqrt().unwrap()).unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.dims(), expected.dims());
    let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let worst = found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst.is_finite() && largest > 0.1 && worst <= ROUNDING * largest.max(1.0), "{worst} of {largest}");
}

#[test]
fn rms_norms_with_weight_without_and_scaled() {
    let (x, scale) = (tensor(&[2, 5, 12], 50), tensor(&[2, 12], 51));
    let (norm, weights) = layer(|p| RmsNorm::new(p, 12, 1e-6));
    let expected = rms(&x, 1e-6).broadcast_mul(&weights["weight"]).unwrap();
    assert_close(&Tensor::run(&norm, |norm| norm.forward(&x)).unwrap(), &expected);
    let rows = (scale.reshape((2, 1, 12)).unwrap() + 1.0).unwrap();
    let found = Tensor::run(&norm, |norm| norm.forward_scaled(&x, &scale)).unwrap();
    assert_close(&found, &expected.broadcast_mul(&rows).unwrap());
    assert_close(&RmsNorm::without_weight(1e-5).forward(&x).unwrap(), &rms(&x, 1e-5));
}

/// The angles of FLUX: axes one after another, `position * theta^(-2 i / n)`.
#[test]
fn rope_tables_have_the_angles_of_each_axis() {
    let tables = RopeTables::new(&[[0.0, 0.0], [2.0, 5.0]], [2, 4], 100.0).unwrap();
    let angles = [[0f32, 0.0, 0.0], [2.0, 5.0, 0.5]]; // 5 * 100^(-2 / 4)
    let angles = Tensor::new(&angles, &Device::Cpu).unwrap();
    assert_close(&tables.cos, &angles.cos().unwrap());
    assert_close(&tables.sin, &angles.sin().unwrap());
    let last = tables.tokens(1, 1).unwrap();
    assert_close(&last.sin, &angles.narrow(0, 1, 1).unwrap().sin().unwrap());
}

#[test]
fn queries_are_normalized_and_rotated() {
    let x = tensor(&[2, 5, 24], 50); // 3 heads of 8
    let positions: Vec<[f64; 1]> = (0..5).map(|i| [f64::from(i)]).collect();
    let tables = RopeTables::new(&positions, [8], 10.0).unwrap();
    let (rope, weights) = layer(|p| Rope::normed(p, 3, 8, RopePairs::Halves, 1e-6));
    let normal = rms(&x.reshape((2, 5, 3, 8)).unwrap(), 1e-6).broadcast_mul(&weights["weight"]).unwrap();
    let found = Tensor::run(&rope, |rope| rope.forward(&x, None)).unwrap();
    assert_close(&found, &normal.reshape((2, 5, 24)).unwrap());

    let [cos, sin] = [&tables.cos, &tables.sin].map(|table| table.reshape((1, 5, 1, 4)).unwrap());
    let (a, b) = (normal.narrow(3, 0, 4).unwrap(), normal.narrow(3, 4, 4).unwrap());
    let mul = |x: &Tensor, y: &Tensor| x.broadcast_mul(y).unwrap();
    let turned = [(mul(&a, &cos) - mul(&b, &sin)).unwrap(), (mul(&b, &cos) + mul(&a, &sin)).unwrap()];
    let expected = Tensor::cat(&turned, 3).unwrap().reshape((2, 5, 24)).unwrap();
    assert_close(&Tensor::run(&rope, |rope| rope.forward(&x, Some(&tables))).unwrap(), &expected);
}

#[test]
fn a_block_is_modulated_and_gated() {
    let (x, emb) = (tensor(&[2, 5, 6], 50), tensor(&[2, 4], 51));
    for silu in [false, true] {
        let (modulation, weights) = layer(|p| Modulation::new(&p.pp("linear"), [4, 6], 3, true, silu));
        let input = if silu { emb.silu().unwrap() } else { emb.clone() };
        let all = linear(&input, &weights["linear.weight"]).broadcast_add(&weights["linear.bias"]).unwrap();
        let chunks: Vec<Tensor> = all.chunk(3, 1).unwrap();
        let found = Tensor::run(&modulation, |modulation| {
            let vectors = modulation.forward(&emb)?;
            let y = modulate(&x, &vectors[1], Some(&vectors[0]), 1e-6)?;
            x.gated_residual(&vectors[2], &y)
        });
        let rows = |i: usize| chunks[i].reshape((2, 1, 6)).unwrap();
        let centered = x.broadcast_sub(&x.mean_keepdim(2).unwrap()).unwrap();
        let y = rms(&centered, 1e-6).broadcast_mul(&(rows(1) + 1.0).unwrap()).unwrap();
        let y = y.broadcast_add(&rows(0)).unwrap().broadcast_mul(&rows(2)).unwrap();
        assert_close(&found.unwrap(), &(x.clone() + y).unwrap());
    }
}

#[test]
fn feed_forward_layers() {
    let (x, residual) = (tensor(&[2, 5, 6], 50), tensor(&[2, 5, 6], 51));
    for function in [Activation::Silu, Activation::GeluTanh] {
        let activate = |x: Tensor| if function == Activation::Silu { x.silu().unwrap() } else { x.gelu().unwrap() };
        let (ff, weights) = layer(|p| GatedFeedForward::new(p, ["wi_0", "wi_1", "wo"], 6, 10, function));
        let hidden = (activate(linear(&x, &weights["wi_0.weight"])) * linear(&x, &weights["wi_1.weight"])).unwrap();
        let expected = linear(&hidden, &weights["wo.weight"]);
        assert_close(&Tensor::run(&ff, |ff| ff.forward(&x, None)).unwrap(), &expected);
        let found = Tensor::run(&ff, |ff| ff.forward(&x, Some(&residual))).unwrap();
        assert_close(&found, &(expected + &residual).unwrap());

        let (ff, weights) = layer(|p| GatedFeedForward::joint(p, ["linear_in", "linear_out"], 6, 10, function));
        let wide = linear(&x, &weights["linear_in.weight"]).chunk(2, 2).unwrap();
        let hidden = (activate(wide[0].contiguous().unwrap()) * &wide[1]).unwrap();
        let found = Tensor::run(&ff, |ff| ff.forward(&x, None)).unwrap();
        assert_close(&found, &linear(&hidden, &weights["linear_out.weight"]));

        let (mlp, weights) = layer(|p| Mlp::new(p, ["a", "b"], [6, 10, 4], function, true));
        let hidden = activate(linear(&x, &weights["a.weight"]).broadcast_add(&weights["a.bias"]).unwrap());
        let expected = linear(&hidden, &weights["b.weight"]).broadcast_add(&weights["b.bias"]).unwrap();
        assert_close(&Tensor::run(&mlp, |mlp| mlp.forward(&x)).unwrap(), &expected);
    }
}

/// T5's attention: a bias of each head, no factor of the scores, pads behind a length.
#[test]
fn attention_with_a_bias_and_lengths() {
    let [q, k, v] = [50, 51, 52].map(|seed| tensor(&[2, 4, 12], seed));
    let (bias, lengths) = (tensor(&[1, 3, 4, 4], 53), Tensor::new(&[4f32, 2.0], &Device::Cpu).unwrap());
    let config = GroupedAttention { num_heads: 3, num_kv_heads: 3, causal: false, scale: Some(1.0) };
    let found = q.grouped_attention([&k, &v], Some(&bias), Some(&lengths), config).unwrap();
    let heads = |x: &Tensor| x.reshape((2, 4, 3, 4)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    let scores = heads(&q).matmul(&heads(&k).t().unwrap().contiguous().unwrap()).unwrap();
    let seen = Tensor::new(&[[1f32, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], &Device::Cpu).unwrap();
    let powers = scores.broadcast_add(&bias).unwrap().exp().unwrap();
    let powers = powers.broadcast_mul(&seen.reshape((2, 1, 1, 4)).unwrap()).unwrap();
    let weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1).unwrap()).unwrap();
    let expected = weights.matmul(&heads(&v)).unwrap().transpose(1, 2).unwrap().reshape((2, 4, 12)).unwrap();
    assert_close(&found, &expected);
}
