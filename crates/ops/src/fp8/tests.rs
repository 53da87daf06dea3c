use candle_core::{DType, Device, Tensor};

use super::source::Source;
use super::*;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};
use crate::{Conv2d, Conv2dInputs, GroupNorm, Weight, conv2d, f8_e4m3, group_norm, linear};

/// How much a result differs, relative to the largest one, if one input value is rounded to the next e4m3 number. Kernels and
/// references sum in different orders, so values near the middle of two e4m3 numbers may be rounded differently.
const STEP: f32 = 1e-2;

/// A weight in e4m3 for a parameter of the shape `stored`, with its numbers in f32.
fn weight(packing: Packing, stored: &[usize]) -> (Weight, Weight) {
    let values = exact(&random(stored)).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let matrix = Fp8Matrix::of(packing, stored).unwrap();
    let (mut bytes, mut scales, mut numbers) = (vec![0u8; matrix.bytes()], Vec::new(), Vec::new());
    for (row, bytes) in bytes.chunks_exact_mut(matrix.row_bytes()).enumerate() {
        scales.push(matrix.row(row, |start, out| out.copy_from_slice(&values[start..start + out.len()]), bytes));
        numbers.extend(bytes.iter().map(|&bits| f8_e4m3(bits) * scales[row]));
    }
    // Slabs have elements of other types, so the bytes are those of floats.
    let (floats, _) = bytes.as_chunks::<4>();
    let floats: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let tensor = |values: Vec<f32>| {
        let count = values.len();
        Tensor::from_vec(values, count, &Device::Cpu).unwrap().to_device(&TARGET.0).unwrap()
    };
    let fp8 = Weight::fp8(&tensor(floats), &tensor(scales), packing, stored).unwrap();
    let [n, kh, kw, c] = fp8.shape();
    let dense = Tensor::from_vec(numbers, (n, kh, kw, c), &Device::Cpu).unwrap();
    let dense = if stored.len() == 2 { dense.reshape((n, c)).unwrap() } else { dense };
    (fp8, Weight::plain(&dense).unwrap())
}

/// `x` as products read it, in f32 on the CPU: `scales` parts, each with its own scale.
fn read(x: &Tensor, scales: usize) -> Tensor {
    let values = exact(x).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let rounded = rounded(&values, values.len() / scales);
    Tensor::from_vec(rounded, x.dims(), &Device::Cpu).unwrap()
}

fn linear_layers_agree_with_exact_products() {
    for (rows, k, n) in [(1, 16, 16), (5, 48, 80), (77, 320, 320), (300, 640, 160), (9, 2560, 64), (700, 1280, 1280)] {
        let (fp8, dense) = weight(Packing::Linear, &[n, k]);
        let (x, bias, residual) = (random(&[rows, k]), random(&[n]), random(&[rows, n]));
        let run = |out: Option<&Tensor>| linear(&x, &fp8, Some(&bias), Some(&residual), out).unwrap();
        let (bias_f32, residual_f32) = (exact(&bias), exact(&residual));
        let expected = linear(&read(&x, rows), &dense, Some(&bias_f32), Some(&residual_f32), None).unwrap();
        assert_close(&run(None), &expected, 1e-3); // tensor cores keep 14 bits of sums of 128 products
        random_into(&expected, |out| run(Some(out)), 1e-3);
    }
}

fn convolutions_agree_with_exact_products() {
    for (b, h, w, c, n, kernel) in [
        (1, 16, 8, 64, 64, 3),
        (2, 8, 8, 128, 96, 3),
        (3, 5, 7, 64, 160, 3),
        (1, 17, 23, 48, 80, 3),
        (2, 6, 9, 32, 48, 1),
    ] {
        let (fp8, dense) = weight(Packing::Conv2d, &[n, c, kernel, kernel]);
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
            let expected = of(&dense, &read(&x, scales), [&bias_f32, &image_bias_f32, &residual_f32], None);
            assert_close(&of(&fp8, &x, addends, None), &expected, 1e-3);
            random_into(&expected, |out| of(&fp8, &x, addends, Some(out)), 1e-3);
        }
    }
}

#[test]
fn references_agree_with_exact_products() {
    if TARGET.0.is_cpu() {
        linear_layers_agree_with_exact_products();
        convolutions_agree_with_exact_products();
    }
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn kernels_agree_with_exact_products() {
    let (device, dtype) = &*TARGET;
    if *dtype == DType::F32 {
        return; // there is no kernel for it
    }
    assert!(crate::device::supports_fp8(device, *dtype), "this tests a GPU of compute capability 9.0");
    linear_layers_agree_with_exact_products();
    convolutions_agree_with_exact_products();
}

/// Each image has the bits that it has alone.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn an_image_has_the_same_bits_in_every_batch() {
    let (fp8, _) = weight(Packing::Conv2d, &[320, 64, 3, 3]);
    let x = random(&[3, 32, 32, 64]);
    let of = |x: &Tensor| {
        let inputs = Conv2dInputs { x, weight: &fp8, bias: None, image_bias: None, residual: None };
        exact(&conv2d(inputs, Conv2d::same(3), None).unwrap())
    };
    let whole = of(&x);
    for image in 0..3 {
        let alone = of(&x.narrow(0, image, 1).unwrap().contiguous().unwrap());
        assert_close(&alone, &whole.narrow(0, image, 1).unwrap(), 0.0);
    }
}

#[test]
fn a_row_is_rounded_by_its_largest_magnitude() {
    let stored = [16, 16, 3, 3];
    let matrix = Fp8Matrix::of(Packing::Conv2d, &stored).unwrap();
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
fn channels_that_are_no_multiples_of_16_are_not_stored() {
    assert_eq!(Fp8Matrix::of(Packing::Linear, &[24, 32]), None);
    assert_eq!(Fp8Matrix::of(Packing::Conv2d, &[32, 4, 3, 3]), None);
    assert_eq!(Fp8Matrix::of(Packing::AsStored, &[32, 32]), None);
    let flat = |count: usize| Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
    let error = Weight::fp8(&flat(63), &flat(16), Packing::Linear, &[16, 16]).unwrap_err();
    assert!(error.to_string().contains("in e4m3"), "{error}");
    assert!(Weight::fp8(&flat(64), &flat(15), Packing::Linear, &[16, 16]).is_err());
}

fn operators_before_products_agree_with_exact_ones() {
    for (rows, k, n) in [(5, 48, 80), (77, 640, 160), (300, 1280, 320), (3, 2560, 64)] {
        let (fp8, _) = weight(Packing::Linear, &[n, k]);
        let (x, bias, residual) = (random(&[rows, k]), random(&[n]), random(&[rows, n]));
        let (gamma, beta) = (random(&[k]), random(&[k]));
        let found = normed_linear(&x, (&gamma, &beta, 1e-5), &fp8, Some(&bias), Some(&residual)).unwrap();
        let source = Source::LayerNorm { x: &x, gamma: &gamma, beta: &beta, eps: 1e-5 };
        let expected = reference::linear_layer(source, &fp8, Some(&bias), Some(&residual)).unwrap();
        assert_close(&found, &exact(&expected), STEP);
        let wide = (random(&[rows, 2 * k]) * 3.0).unwrap();
        let found = geglu_linear(&wide, &fp8, Some(&bias), None).unwrap();
        let expected = reference::linear_layer(Source::Geglu(&wide), &fp8, Some(&bias), None).unwrap();
        assert_close(&found, &exact(&expected), STEP);
    }
    for (b, h, w, c, n) in [(2, 16, 8, 64, 80), (1, 33, 40, 320, 64), (2, 64, 64, 128, 32)] {
        let (fp8, _) = weight(Packing::Conv2d, &[n, c, 3, 3]);
        let (x, bias, residual) = (random(&[b, h, w, c]), random(&[n]), random(&[b, h, w, n]));
        let (gamma, beta, config) = (random(&[c]), random(&[c]), GroupNorm { num_groups: 16, eps: 1e-5, silu: true });
        let (bias, residual) = (Some(&bias), Some(&residual));
        let inputs = Conv2dInputs { x: &x, weight: &fp8, bias, image_bias: None, residual };
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
    // Close to the operators one by one: e4m3 keeps 4 digits.
    let (fp8, _) = weight(Packing::Conv2d, &[32, 64, 3, 3]);
    let (x, gamma, beta) = (random(&[2, 12, 12, 64]), random(&[64]), random(&[64]));
    let config = GroupNorm { num_groups: 8, eps: 1e-5, silu: true };
    let inputs = |x| Conv2dInputs { x, weight: &fp8, bias: None, image_bias: None, residual: None };
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
    let (fp8, dense) = weight(Packing::Linear, &[32, 64]);
    let (x, vector) = (exact(&random(&[3, 64])), exact(&random(&[64])));
    let error = normed_linear(&x, (&vector, &vector, 1e-5), &dense, None, None).unwrap_err();
    assert_eq!(error.to_string(), "normed_linear: the weight is not in e4m3, expected one that is");
    let short = exact(&random(&[63]));
    assert!(normed_linear(&x, (&short, &vector, 1e-5), &fp8, None, None).unwrap_err().to_string().contains("gamma"));
    assert!(geglu_linear(&x, &fp8, None, None).unwrap_err().to_string().contains("weight"));
}
