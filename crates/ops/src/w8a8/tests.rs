use candle_core::{DType, Device, Tensor};

use super::source::Source;
use super::*;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};
use crate::{
    Activation, Conv2d, Conv2dInputs, GroupNorm, Weight, activation, concat_channels, conv2d, f8_e4m3, group_norm,
    linear,
};

const NUMBERS: [ByteNumber; 2] = [ByteNumber::E4m3, ByteNumber::Int8];

/// How much a result differs, relative to the largest one, if one input value is rounded to the next number. Kernels and
/// references sum in different orders, so values near the middle of two numbers may be rounded differently.
const STEP: f32 = 1e-2;

/// A weight in bytes for a parameter of the shape `stored`, with its numbers in f32.
fn weight(number: ByteNumber, packing: Packing, stored: &[usize]) -> (Weight, Weight) {
    let values = exact(&random(stored)).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let matrix = W8Matrix::of(number, packing, stored).unwrap();
    let (mut bytes, mut scales, mut numbers) = (vec![0u8; matrix.bytes()], Vec::new(), Vec::new());
    for (row, bytes) in bytes.chunks_exact_mut(matrix.row_bytes()).enumerate() {
        scales.push(matrix.row(row, |start, out| out.copy_from_slice(&values[start..start + out.len()]), bytes));
        numbers.extend(bytes.iter().map(|&bits| number.value(bits) * scales[row]));
    }
    // Slabs have elements of other types, so the bytes are those of floats.
    let (floats, _) = bytes.as_chunks::<4>();
    let floats: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let tensor = |values: Vec<f32>| {
        let count = values.len();
        Tensor::from_vec(values, count, &Device::Cpu).unwrap().to_device(&TARGET.0).unwrap()
    };
    let w8 = Weight::w8(number, &tensor(floats), &tensor(scales), packing, stored).unwrap();
    let [n, kh, kw, c] = w8.shape();
    let dense = Tensor::from_vec(numbers, (n, kh, kw, c), &Device::Cpu).unwrap();
    let dense = if stored.len() == 2 { dense.reshape((n, c)).unwrap() } else { dense };
    (w8, Weight::plain(&dense).unwrap())
}

/// `x` as products read it, in f32 on the CPU: `scales` parts, each with its own scale.
fn read(number: ByteNumber, x: &Tensor, scales: usize) -> Tensor {
    let values = exact(x).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let rounded = rounded(number, &values, values.len() / scales);
    Tensor::from_vec(rounded, x.dims(), &Device::Cpu).unwrap()
}

fn linear_layers_agree_with_exact_products(number: ByteNumber) {
    for (rows, k, n) in [(1, 16, 16), (5, 48, 80), (77, 320, 320), (300, 640, 160), (9, 2560, 64), (700, 1280, 1280)] {
        let (w8, dense) = weight(number, Packing::Linear, &[n, k]);
        let (x, bias, residual) = (random(&[rows, k]), random(&[n]), random(&[rows, n]));
        let run = |out: Option<&Tensor>| linear(&x, &w8, Some(&bias), Some(&residual), out).unwrap();
        let (bias_f32, residual_f32) = (exact(&bias), exact(&residual));
        let expected = linear(&read(number, &x, rows), &dense, Some(&bias_f32), Some(&residual_f32), None).unwrap();
        assert_close(&run(None), &expected, 1e-3); // tensor cores keep 14 bits of sums of 128 products
        random_into(&expected, |out| run(Some(out)), 1e-3);
    }
}

fn convolutions_agree_with_exact_products(number: ByteNumber) {
    for (b, h, w, c, n, kernel) in [
        (1, 16, 8, 64, 64, 3),
        (2, 8, 8, 128, 96, 3),
        (3, 5, 7, 64, 160, 3),
        (1, 17, 23, 48, 80, 3),
        (2, 6, 9, 32, 48, 1),
    ] {
        let (w8, dense) = weight(number, Packing::Conv2d, &[n, c, kernel, kernel]);
        let (x, bias, residual) = (random(&[b, h, w, c]), random(&[n]), random(&[b, h, w, n]));
        for images in [1, b] {
            let image_bias = random(&[images, n]);
            let of = |weight, x: &Tensor, [bias, image_bias, residual]: [&Tensor; 3], out: Option<&Tensor>| {
                let (bias, image_bias, residual) = (Some(bias), Some(image_bias), Some(residual));
                conv2d(Conv2dInputs { x, weight, bias, image_bias, residual }, Conv2d::same(kernel), out).unwrap()
            };
            let scales = if kernel == 1 { b * h * w } else { b };
            let addends = [&bias, &image_bias, &residual];
            let [bias_f32, image_bias_f32, residual_f32] = addends.map(exact);
            let expected = of(&dense, &read(number, &x, scales), [&bias_f32, &image_bias_f32, &residual_f32], None);
            assert_close(&of(&w8, &x, addends, None), &expected, 1e-3);
            random_into(&expected, |out| of(&w8, &x, addends, Some(out)), 1e-3);
        }
    }
}

#[test]
fn references_agree_with_exact_products() {
    if TARGET.0.is_cpu() {
        for number in NUMBERS {
            linear_layers_agree_with_exact_products(number);
            convolutions_agree_with_exact_products(number);
        }
    }
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn kernels_agree_with_exact_products() {
    let (device, dtype) = &*TARGET;
    if *dtype == DType::F32 {
        return; // there is no kernel for it
    }
    for number in NUMBERS {
        assert!(
            crate::device::supports_w8a8(device, number, *dtype),
            "this tests a GPU of compute capability 8.9 or later"
        );
        linear_layers_agree_with_exact_products(number);
        convolutions_agree_with_exact_products(number);
    }
}

/// Each image has the bits that it has alone.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn an_image_has_the_same_bits_in_every_batch() {
    for number in NUMBERS {
        let (w8, _) = weight(number, Packing::Conv2d, &[320, 64, 3, 3]);
        let x = random(&[3, 32, 32, 64]);
        let of = |x: &Tensor| {
            let inputs = Conv2dInputs { x, weight: &w8, bias: None, image_bias: None, residual: None };
            exact(&conv2d(inputs, Conv2d::same(3), None).unwrap())
        };
        let whole = of(&x);
        for image in 0..3 {
            let alone = of(&x.narrow(0, image, 1).unwrap().contiguous().unwrap());
            assert_close(&alone, &whole.narrow(0, image, 1).unwrap(), 0.0);
        }
    }
}

#[test]
fn a_row_is_rounded_by_its_largest_magnitude() {
    let stored = [16, 16, 3, 3];
    let matrix = W8Matrix::of(ByteNumber::E4m3, Packing::Conv2d, &stored).unwrap();
    assert_eq!((matrix.rows(), matrix.row_bytes(), matrix.bytes()), (16, 144, 2304));
    // The value of an element is its index in the stored row, (channel, tap).
    let read =
        |start: usize, out: &mut [f32]| out.iter_mut().enumerate().for_each(|(i, out)| *out = (start % 144 + i) as f32);
    let mut bytes = [0; 144];
    let scale = matrix.row(3, read, &mut bytes);
    assert_eq!((scale, f8_e4m3(bytes[143])), (143.0 / 448.0, 448.0));
    for (tap, channel) in [(0, 5), (8, 1), (4, 15)] {
        let value = (channel * 9 + tap) as f32;
        assert!((f8_e4m3(bytes[tap * 16 + channel]) * scale - value).abs() <= value / 16.0);
    }
    let mut zeros = [1; 144];
    assert_eq!(matrix.row(0, |_, out| out.fill(0.0), &mut zeros), 0.0);
    assert_eq!(zeros, [0; 144]);
}

#[test]
fn integers_are_rounded_to_the_nearest_even_and_keep_what_is_not_finite() {
    let matrix = W8Matrix::of(ByteNumber::Int8, Packing::Linear, &[16, 16]).unwrap();
    let values: Vec<f32> = (0..16).map(|i| if i == 0 { -127.0 } else { i as f32 - 0.5 }).collect();
    let mut bytes = [0; 16];
    assert_eq!(matrix.row(0, |_, out| out.copy_from_slice(&values), &mut bytes), 1.0);
    let found = bytes.map(|byte| ByteNumber::Int8.value(byte));
    assert_eq!(found, [-127.0, 0.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 8.0, 8.0, 10.0, 10.0, 12.0, 12.0, 14.0, 14.0]);
    for bad in [f32::NAN, f32::INFINITY] {
        let rounded = rounded(ByteNumber::Int8, &[1.0, bad, 2.0, 3.0], 2);
        assert!(rounded[..2].iter().all(|value| value.is_nan()) && rounded[2..].iter().all(|value| value.is_finite()));
        let scale = matrix.row(0, |_, out| (out.fill(1.0), out[3] = bad).0, &mut bytes);
        assert!(!scale.is_finite(), "{bad} is lost");
    }
}

#[test]
fn rows_that_kernels_cannot_read_are_not_stored() {
    for number in NUMBERS {
        assert_eq!(W8Matrix::of(number, Packing::Linear, &[24, 32]), None);
        assert_eq!(W8Matrix::of(number, Packing::Conv2d, &[32, 4, 3, 3]), None);
        assert_eq!(W8Matrix::of(number, Packing::AsStored, &[32, 32]), None);
        assert_eq!(W8Matrix::of(number, Packing::Linear, &[16, 131_072]), None);
        let flat = |count: usize| Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
        let error = Weight::w8(number, &flat(63), &flat(16), Packing::Linear, &[16, 16]).unwrap_err();
        assert!(error.to_string().contains(&format!("in {number}")), "{error}");
        assert!(Weight::w8(number, &flat(64), &flat(15), Packing::Linear, &[16, 16]).is_err());
    }
}

fn operators_before_products_agree_with_exact_ones() {
    NUMBERS.into_iter().for_each(rows_of_operators_agree_with_exact_ones);
    maps_of_group_norms_agree_with_exact_ones();
}

fn rows_of_operators_agree_with_exact_ones(number: ByteNumber) {
    for (rows, k, n) in [(5, 48, 80), (77, 640, 160), (300, 1280, 320), (3, 2560, 64)] {
        let (w8, _) = weight(number, Packing::Linear, &[n, k]);
        let (x, bias, residual) = (random(&[rows, k]), random(&[n]), random(&[rows, n]));
        let (gamma, beta) = (random(&[k]), random(&[k]));
        let found = normed_linear(&x, (&gamma, &beta, 1e-5), &w8, Some(&bias), Some(&residual)).unwrap();
        let source = Source::LayerNorm { x: &x, gamma: &gamma, beta: &beta, eps: 1e-5 };
        let expected = reference::linear_layer(source, &w8, Some(&bias), Some(&residual)).unwrap();
        assert_close(&found, &exact(&expected), STEP);
        let wide = (random(&[rows, 2 * k]) * 3.0).unwrap();
        let found = geglu_linear(&wide, &w8, Some(&bias), None).unwrap();
        let expected = reference::linear_layer(Source::Geglu(&wide), &w8, Some(&bias), None).unwrap();
        assert_close(&found, &exact(&expected), STEP);
    }
    // The last row is longer than what the threads of a block keep.
    for (rows, before, k, n) in [(5, 0, 48, 80), (77, 32, 640, 160), (3, 64, 9216, 32), (2, 16, 16512, 16)] {
        activations_agree_with_exact_ones(number, [rows, before, k, n]);
    }
}

/// Activations of each kind, of which the first `before` of `k` channels are none, and the rows of gates and values are parts of
/// wider ones.
fn activations_agree_with_exact_ones(number: ByteNumber, [rows, before, k, n]: [usize; 4]) {
    let (w8, _) = weight(number, Packing::Linear, &[n, k]);
    let (bias, residual) = (random(&[n]), random(&[2, rows, n]));
    let hidden = k - before;
    let channels = random(&[2, rows, before.max(1)]);
    let wide = (random(&[2, rows, 16 + 2 * hidden]) * 3.0).unwrap();
    let part = wide.narrow(2, 16, 2 * hidden).unwrap();
    let [gates, values] = [0, hidden].map(|first| part.narrow(2, first, hidden).unwrap());
    let inputs = [
        (Hidden::Plain(&gates), Activation::GeluTanh),
        (Hidden::Joint(&part), Activation::Silu),
        (Hidden::Separate { gates: &gates, values: &values }, Activation::GeluErf),
    ];
    for (hidden, function) in inputs {
        let input = Activated { before: (before > 0).then_some(&channels), hidden, function };
        let found = activation_linear(input, &w8, Some(&bias), Some(&residual)).unwrap();
        let expected = reference::linear_layer(Source::Activated(input), &w8, Some(&bias), Some(&residual)).unwrap();
        assert_close(&found, &exact(&expected), STEP);
    }
}

fn maps_of_group_norms_agree_with_exact_ones() {
    for (b, h, w, c, n) in [(2, 16, 8, 64, 80), (1, 33, 40, 320, 64), (2, 64, 64, 128, 32)] {
        let (w8, _) = weight(ByteNumber::E4m3, Packing::Conv2d, &[n, c, 3, 3]);
        let (x, bias, residual) = (random(&[b, h, w, c]), random(&[n]), random(&[b, h, w, n]));
        let (gamma, beta, config) = (random(&[c]), random(&[c]), GroupNorm { num_groups: 16, eps: 1e-5, silu: true });
        let (bias, residual) = (Some(&bias), Some(&residual));
        let inputs = Conv2dInputs { x: &x, weight: &w8, bias, image_bias: None, residual };
        let found = normed_conv2d(inputs, (&gamma, &beta, config), Conv2d::same(3)).unwrap();
        let source = Source::GroupNorm { x: &x, gamma: &gamma, beta: &beta, config };
        let expected = reference::convolution(source, inputs, Conv2d::same(3)).unwrap();
        assert_close(&found, &exact(&expected), STEP);
    }
}

#[test]
fn operators_before_products_are_those_of_their_own() {
    if !TARGET.0.is_cpu() {
        return;
    }
    operators_before_products_agree_with_exact_ones();
    let (w8, _) = weight(ByteNumber::E4m3, Packing::Linear, &[32, 96]);
    let (before, x) = (random(&[3, 32]), random(&[3, 64]));
    let activated = activation(&x, Activation::GeluTanh, None).unwrap();
    let expected = linear(&concat_channels(&before, &activated, None).unwrap(), &w8, None, None, None).unwrap();
    let input = Activated { before: Some(&before), hidden: Hidden::Plain(&x), function: Activation::GeluTanh };
    assert_close(&activation_linear(input, &w8, None, None).unwrap(), &expected, 1.0 / 16.0);
    // Close to the operators one by one: e4m3 keeps 4 digits.
    let (w8, _) = weight(ByteNumber::E4m3, Packing::Conv2d, &[32, 64, 3, 3]);
    let (x, gamma, beta) = (random(&[2, 12, 12, 64]), random(&[64]), random(&[64]));
    let config = GroupNorm { num_groups: 8, eps: 1e-5, silu: true };
    let inputs = |x| Conv2dInputs { x, weight: &w8, bias: None, image_bias: None, residual: None };
    let normal = group_norm(&x, &gamma, &beta, config, None).unwrap();
    let expected = conv2d(inputs(&normal), Conv2d::same(3), None).unwrap();
    let found = normed_conv2d(inputs(&x), (&gamma, &beta, config), Conv2d::same(3)).unwrap();
    assert_close(&found, &expected, 1.0 / 16.0);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn kernels_of_operators_before_products_agree_with_exact_ones() {
    if TARGET.1 != DType::F32 {
        operators_before_products_agree_with_exact_ones();
    }
}

#[test]
fn operators_before_products_refuse_what_does_not_fit() {
    let (w8, dense) = weight(ByteNumber::Int8, Packing::Linear, &[32, 64]);
    let (x, vector) = (exact(&random(&[3, 64])), exact(&random(&[64])));
    let error = normed_linear(&x, (&vector, &vector, 1e-5), &dense, None, None).unwrap_err();
    assert_eq!(error.to_string(), "normed_linear: the weight is not in bytes, expected one that is");
    let short = exact(&random(&[63]));
    assert!(normed_linear(&x, (&short, &vector, 1e-5), &w8, None, None).unwrap_err().to_string().contains("gamma"));
    assert!(geglu_linear(&x, &w8, None, None).unwrap_err().to_string().contains("weight"));
    let input = |before, hidden| Activated { before, hidden, function: Activation::Silu };
    let refused = |input| activation_linear(input, &w8, None, None).unwrap_err().to_string();
    assert!(refused(input(Some(&vector), Hidden::Plain(&x))).contains("before"));
    assert!(refused(input(Some(&x), Hidden::Plain(&x))).contains("weight"));
    assert!(refused(input(None, Hidden::Separate { gates: &x, values: &short })).contains("values"));
    assert!(refused(input(None, Hidden::Joint(&short))).contains("gates and values"));
    let (w8, _) = weight(ByteNumber::Int8, Packing::Conv2d, &[32, 64, 3, 3]);
    let x = exact(&random(&[1, 4, 4, 64]));
    let inputs = Conv2dInputs { x: &x, weight: &w8, bias: None, image_bias: None, residual: None };
    let config = GroupNorm { num_groups: 8, eps: 1e-5, silu: true };
    let error = normed_conv2d(inputs, (&vector, &vector, config), Conv2d::same(3)).unwrap_err();
    assert_eq!(error.to_string(), "normed_conv2d: the weight is in integers, expected e4m3");
}
