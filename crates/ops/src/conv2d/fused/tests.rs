use candle_core::{Device, Tensor};

use super::*;
use crate::test_support::{TARGET, assert_close, exact, exact_weight, random, random_into, weight};
use crate::{Conv2dInputs, conv2d};

/// The formula in candle's primitives, in f32.
fn expected(parts: &[Tensor], weight: &Weight, bias: &Tensor, scale: f64, addends: [(f64, &Tensor); 2]) -> Tensor {
    let parts: Vec<Tensor> = parts.iter().map(exact).collect();
    let x = Tensor::cat(&parts, 3).unwrap();
    let (weight, bias) = (exact_weight(weight), exact(bias));
    let inputs = Conv2dInputs { x: &x, weight: &weight, bias: Some(&bias), image_bias: None, residual: None };
    let config = Conv2d::same(3);
    let shapes = super::super::check(&inputs, config, None).unwrap();
    let mut y = (reference::forward(inputs, config, shapes).unwrap() * scale).unwrap();
    for (factor, addend) in addends {
        y = (y + (exact(addend) * factor).unwrap()).unwrap();
    }
    y
}

fn leaky(y: &Tensor, slopes: &Tensor) -> Tensor {
    let negative = y.minimum(&y.zeros_like().unwrap()).unwrap();
    (y.relu().unwrap() + negative.broadcast_mul(&exact(slopes)).unwrap()).unwrap()
}

#[test]
fn kernel_agrees_with_the_formula() {
    // Winograd's algorithm, with parts that blocks of channels begin and end in, and the direct one, with odd parts.
    let cases: [(usize, usize, usize, &[usize], usize); 5] = [
        (1, 9, 13, &[64, 32, 32, 32, 32], 64),
        (2, 17, 12, &[32, 16, 48], 40),
        (2, 9, 7, &[5, 3, 1], 6),
        (1, 12, 10, &[33, 31], 64),
        (1, 30, 31, &[144], 32),
    ];
    for (b, h, w, channels, c_out) in cases {
        let parts: Vec<Tensor> = channels.iter().map(|&c| random(&[b, h, w, c])).collect();
        let views: Vec<&Tensor> = parts.iter().collect();
        let weight = weight(&[c_out, 3, 3, channels.iter().sum()]);
        let (bias, slopes) = (random(&[c_out]), random(&[c_out]));
        let (first, second) = (random(&[b, h, w, c_out]), random(&[b, h, w, c_out]));
        let addends = [Some((0.2, &first)), Some((-1.5, &second))];
        let y = expected(&parts, &weight, &bias, 0.04, [(f64::from(0.2f32), &first), (-1.5, &second)]);
        let constant = Tensor::new(0.2f32, &Device::Cpu).unwrap();
        for (slope, wanted) in [
            (Slope::Linear, y.clone()),
            (Slope::Constant(0.2), leaky(&y, &constant)),
            (Slope::Channels(&slopes), leaky(&y, &slopes)),
        ] {
            let epilogue = Conv2dEpilogue { scale: 0.04, addends, slope };
            let inputs = FusedConv2d { parts: &views, weight: &weight, bias: Some(&bias), epilogue };
            assert_close(&fused_conv2d(inputs, Conv2d::same(3), None, None).unwrap(), &wanted, 1e-5);
            random_into(&wanted, |out| fused_conv2d(inputs, Conv2d::same(3), None, Some(out)).unwrap(), 1e-5);
            let composed = reference::fused(inputs, Conv2d::same(3), None).unwrap();
            assert_close(&composed, &wanted, 1e-5);
        }
    }
}

#[test]
fn parts_have_the_bits_of_the_concatenated_map() {
    let parts: Vec<Tensor> = [64, 32, 32].iter().map(|&c| random(&[2, 12, 11, c])).collect();
    let views: Vec<&Tensor> = parts.iter().collect();
    let (x, weight, bias) = (Tensor::cat(&parts, 3).unwrap(), weight(&[48, 3, 3, 128]), random(&[48]));
    let residual = random(&[2, 12, 11, 48]);
    let plain = Conv2dInputs { x: &x, weight: &weight, bias: Some(&bias), image_bias: None, residual: Some(&residual) };
    let epilogue = Conv2dEpilogue { addends: [Some((1.0, &residual)), None], ..Conv2dEpilogue::default() };
    let fused = FusedConv2d { parts: &views, weight: &weight, bias: Some(&bias), epilogue };
    let (plain, fused) = (conv2d(plain, Conv2d::same(3), None), fused_conv2d(fused, Conv2d::same(3), None, None));
    assert_close(&fused.unwrap(), &exact(&plain.unwrap()), 0.0);
}

#[test]
fn a_strip_has_the_bits_of_the_whole() {
    // cuBLASLt splits sums by the number of rows, and in f32 the last bit shows it.
    let on_gpu_in_f32 = TARGET.0.is_cuda() && TARGET.1 == DType::F32;
    let bound = if on_gpu_in_f32 { 1e-6 } else { 0.0 };
    for channels in [[64, 32], [7, 4]] {
        let parts = channels.map(|c| random(&[1, 20, 9, c]));
        let views = [&parts[0], &parts[1]];
        let weight = weight(&[32, 3, 3, channels.iter().sum()]);
        let epilogue = Conv2dEpilogue { slope: Slope::Constant(0.2), ..Conv2dEpilogue::default() };
        let inputs = FusedConv2d { parts: &views, weight: &weight, bias: None, epilogue };
        let whole = fused_conv2d(inputs, Conv2d::same(3), None, None).unwrap();
        for rows in [0..8, 8..20] {
            let strip = Strip { height: 20, rows: rows.clone() };
            let read = strip.input_rows(Conv2d::same(3), 3);
            let parts = parts.each_ref().map(|part| part.narrow(1, read.start, read.len()).unwrap());
            let inputs = FusedConv2d { parts: &[&parts[0], &parts[1]], ..inputs };
            let y = fused_conv2d(inputs, Conv2d::same(3), Some(&strip), None).unwrap();
            assert_close(&y, &exact(&whole.narrow(1, rows.start, rows.len()).unwrap()), bound);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (x, small, weight) = (random(&[1, 4, 4, 8]), random(&[1, 3, 4, 8]), weight(&[4, 3, 3, 16]));
    let run = |parts: &[&Tensor], addend: Option<&Tensor>| {
        let epilogue =
            Conv2dEpilogue { addends: [addend.map(|addend| (1.0, addend)), None], ..Conv2dEpilogue::default() };
        let inputs = FusedConv2d { parts, weight: &weight, bias: None, epilogue };
        fused_conv2d(inputs, Conv2d::same(3), None, None).map(drop)
    };
    assert!(run(&[&x, &x], None).is_ok());
    assert!(run(&[], None).unwrap_err().to_string().contains("at least one"));
    assert!(run(&[&x], None).unwrap_err().to_string().contains("(b, h, w, 16) in all parts together"));
    assert!(run(&[&x, &small], None).unwrap_err().to_string().contains("same b, h and w"));
    assert!(run(&[&x, &x], Some(&small)).unwrap_err().to_string().contains("addend"));
}
