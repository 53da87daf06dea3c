use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::{Int8Input, Int8Matrix};
use crate::test_support::{exact, random};
use crate::{Conv2d, Conv2dInputs, Packing, Weight, conv2d, linear};

fn values(tensor: &Tensor) -> Vec<f32> {
    exact(tensor).flatten_all().unwrap().to_vec1().unwrap()
}

/// A random tensor on the CPU in f32, whatever the tests run in.
fn any(shape: &[usize]) -> Tensor {
    exact(&random(shape))
}

/// A parameter in 8 bits in memory of a type.
fn int8(stored: &Tensor, dtype: DType, input: Int8Input) -> Weight {
    let packing = if stored.rank() == 2 { Packing::Linear } else { Packing::Conv2d };
    let elements = values(stored);
    let matrix = Int8Matrix::of(packing, stored.dims()).unwrap();
    let words = matrix.memory(&elements, input.balance.as_deref()).unwrap();
    let memory = match dtype {
        DType::F32 => words,
        _ => {
            let bytes = words.to_vec1::<f32>().unwrap().into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
            let halves = bytes.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes));
            Tensor::from_vec(halves.collect::<Vec<_>>(), bytes.len() / 2, &Device::Cpu).unwrap()
        }
    };
    assert_eq!(memory.elem_count() * memory.dtype().size_in_bytes(), matrix.bytes());
    assert!(matrix.memory(&elements[1..], None).is_err());
    Weight::int8(&memory, packing, stored.dims(), Arc::new(input)).unwrap()
}

/// A parameter in the plain layout.
fn plain(stored: &Tensor) -> Weight {
    let stored =
        if stored.rank() == 4 { stored.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap() } else { stored.clone() };
    Weight::plain(&stored).unwrap()
}

/// The error's standard deviation over that of the expected values.
fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    let (found, expected) = (values(found), values(expected));
    assert_eq!(found.len(), expected.len());
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let errors = squares(&mut found.iter().zip(&expected).map(|(found, expected)| found - expected));
    (errors / squares(&mut expected.iter().copied())).sqrt()
}

#[test]
fn linear_layers_are_as_exact_as_their_bytes() {
    for (rows, k, n) in [(1, 5, 3), (7, 33, 65), (300, 320, 40), (129, 640, 31), (2, 2500, 33)] {
        let (x, stored, bias, residual) = (any(&[rows, k]), any(&[n, k]), any(&[n]), any(&[rows, n]));
        let expected = linear(&x, &plain(&stored), Some(&bias), Some(&residual), None).unwrap();
        let weight = int8(&stored, DType::F32, Int8Input::default());
        let found = linear(&x, &weight, Some(&bias), Some(&residual), None).unwrap();
        // Uniform operands: steps of 1/127 and 2/255 leave 0.0039 and 0.0039 of the deviation of each.
        let error = relative_error(&found, &expected);
        assert!(error < 0.009, "({rows}, {k}, {n}): {error}");
    }
}

#[test]
fn convolutions_are_as_exact_as_their_bytes() {
    // (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after)
    let cases = [
        (1, 8, 8, 4, 16, 3, 1, 1, 1),
        (2, 9, 13, 7, 5, 3, 1, 1, 1),
        (2, 9, 7, 6, 10, 3, 2, 0, 1),
        (2, 5, 4, 33, 17, 1, 1, 0, 0),
        (1, 6, 6, 5, 4, 1, 2, 0, 0),
        (2, 8, 8, 320, 70, 3, 1, 1, 1),
    ];
    for (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after) in cases {
        let config = Conv2d { stride, pad_before, pad_after };
        // Values that are mostly positive, as after SiLU: padding is still an exact 0.
        let x = (any(&[b, h, w, c_in]) + 0.7).unwrap();
        let (stored, bias, image_bias) = (any(&[c_out, c_in, kernel, kernel]), any(&[c_out]), any(&[b, c_out]));
        let run = |weight: &Weight| {
            let inputs =
                Conv2dInputs { x: &x, weight, bias: Some(&bias), image_bias: Some(&image_bias), residual: None };
            conv2d(inputs, config, None).unwrap()
        };
        let expected = run(&plain(&stored));
        let error = relative_error(&run(&int8(&stored, DType::F32, Int8Input::default())), &expected);
        assert!(error < 0.009, "{b} {h} {w} {c_in} {c_out} {kernel}: {error}");
    }
}

#[test]
fn small_integers_are_exact() {
    // Steps of 1 in both operands: every byte, sum and product is an integer.
    let (rows, k, n) = (40, 4100, 35);
    let integers = |count: usize, most: i64, seed: i64| -> Vec<f32> {
        (0..count as i64).map(|i| ((i * 7919 + seed) % (2 * most + 1) - most) as f32).collect()
    };
    let mut x = integers(rows * k, 100, 3);
    x.chunks_exact_mut(k).for_each(|row| (row[0], row[1]) = (-120.0, 135.0)); // a range of 255
    let mut w = integers(n * k, 99, 5);
    w.chunks_exact_mut(k).for_each(|row| row[2] = 127.0);
    let expected: Vec<f32> = (0..rows * n)
        .map(|i| (0..k).map(|p| f64::from(x[i / n * k + p]) * f64::from(w[i % n * k + p])).sum::<f64>() as f32)
        .collect();
    let tensor = |values: Vec<f32>, shape: [usize; 2]| Tensor::from_vec(values, &shape, &Device::Cpu).unwrap();
    let weight = int8(&tensor(w, [n, k]), DType::F32, Int8Input::default());
    let found = linear(&tensor(x, [rows, k]), &weight, None, None, None).unwrap();
    assert_eq!(values(&found), expected);
}

#[test]
fn an_image_has_the_same_bits_in_every_batch() {
    let (x, stored) = (any(&[3, 9, 11, 48]), any(&[40, 48, 3, 3]));
    let x =
        x.broadcast_mul(&Tensor::new(&[1f32, 3.0, 0.2], &Device::Cpu).unwrap().reshape((3, 1, 1, 1)).unwrap()).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let (x, weight) = (x.to_dtype(dtype).unwrap(), int8(&stored, dtype, Int8Input::default()));
        let run = |x: &Tensor| {
            let inputs = Conv2dInputs { x, weight: &weight, bias: None, image_bias: None, residual: None };
            values(&conv2d(inputs, Conv2d::same(3), None).unwrap())
        };
        let all = run(&x);
        for (i, image) in all.chunks_exact(all.len() / 3).enumerate() {
            assert_eq!(run(&x.narrow(0, i, 1).unwrap().contiguous().unwrap()), image, "{dtype:?} {i}");
        }
    }
}

#[test]
fn half_precision_rounds_once() {
    let (x, stored) = (any(&[33, 64]).to_dtype(DType::BF16).unwrap(), any(&[70, 64]));
    let run = |x: &Tensor| {
        let weight = int8(&stored, x.dtype(), Int8Input::default());
        linear(x, &weight, None, None, None).unwrap()
    };
    let exact = run(&x.to_dtype(DType::F32).unwrap());
    assert_eq!(values(&run(&x)), values(&exact.to_dtype(DType::BF16).unwrap()));
}

#[test]
fn a_fixed_range_clamps() {
    let stored = Tensor::new(&[[127f32, 0.0]], &Device::Cpu).unwrap();
    let x = Tensor::new(&[[1f32, 9.0], [-3.0, 0.0], [0.25, 0.0]], &Device::Cpu).unwrap();
    let input = Int8Input { range: Some([-2.0, 0.55]), balance: None };
    let found = values(&linear(&x, &int8(&stored, DType::F32, input), None, None, None).unwrap());
    for (found, expected) in found.iter().zip([0.55f32, -2.0, 0.25]) {
        assert!((found - 127.0 * expected).abs() < 127.0 * 0.0051, "{found}, expected {expected}");
    }
}

#[test]
fn a_balance_keeps_small_channels_beside_large_ones() {
    let (k, n) = (64, 40);
    let factors: Vec<f32> = (0..k).map(|c| if c == 5 { 100.0 } else { 1.0 }).collect();
    let x = any(&[50, k]).broadcast_mul(&Tensor::new(factors.as_slice(), &Device::Cpu).unwrap()).unwrap();
    let stored = any(&[n, k]);
    let expected = linear(&x, &plain(&stored), None, None, None).unwrap();
    let balance: Arc<[f32]> = factors.iter().map(|factor| 1.0 / factor.sqrt()).collect();
    let error =
        |input| relative_error(&linear(&x, &int8(&stored, DType::F32, input), None, None, None).unwrap(), &expected);
    // Most of the result is the large channel's, so the whole error says little: that of the other channels is compared.
    let small = x.slice_assign(&[0..50, 5..6], &Tensor::zeros((50, 1), DType::F32, &Device::Cpu).unwrap()).unwrap();
    let of_small = values(&linear(&small, &plain(&stored), None, None, None).unwrap());
    let deviation =
        |values: &[f32]| (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    let scale = deviation(&values(&expected)) / deviation(&of_small);
    let (without, with) =
        (error(Int8Input::default()) * scale, error(Int8Input { range: None, balance: Some(balance) }) * scale);
    assert!(with < 0.5 * without, "{with} with a balance, {without} without");
}

#[test]
fn no_numbers_stay_none() {
    let stored = any(&[3, 4]);
    let x =
        Tensor::new(&[[1f32, f32::NAN, 0.0, 0.0], [1.0, f32::INFINITY, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]], &Device::Cpu);
    let found = linear(&x.unwrap(), &int8(&stored, DType::F32, Int8Input::default()), None, None, None).unwrap();
    let found = values(&found);
    assert!(found[..6].iter().all(|value| value.is_nan()) && found[6..].iter().all(|value| value.is_finite()));
    let zeros = Tensor::zeros((2, 4), DType::F32, &Device::Cpu).unwrap();
    let found = linear(&zeros, &int8(&stored, DType::F32, Int8Input::default()), None, None, None).unwrap();
    assert!(values(&found).iter().all(|value| *value == 0.0));
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    assert!(Int8Matrix::of(Packing::AsStored, &[3]).is_none());
    assert!(Int8Matrix::of(Packing::Linear, &[1, 66_001]).is_none());
    let memory = Tensor::zeros(8, DType::F32, &Device::Cpu).unwrap();
    let error = Weight::int8(&memory, Packing::Linear, &[4, 5], Arc::default()).unwrap_err().to_string();
    assert!(error.contains("in 8 bits"), "{error}");
    let memory = Tensor::zeros(4096, DType::F32, &Device::Cpu).unwrap();
    let input = Arc::new(Int8Input { range: None, balance: Some([1.0; 3].into()) });
    let error = Weight::int8(&memory, Packing::Linear, &[4, 5], input).unwrap_err().to_string();
    assert!(error.contains("a balance of 3 input channels, expected 5"), "{error}");
}

#[test]
fn weights_are_rounded_as_scalars_are() {
    // Values of many magnitudes, ties, and those that are no numbers, in a row with its own scale each.
    let values: Vec<f32> = (0..4096).map(|i| ((i * 7919 % 4096) as f32 - 2048.0) * 0.125).collect();
    let special = [f32::NAN, 0.0, -0.0, 1e-40, 63.5, 62.5, -0.5, 127.0, -126.5];
    for row in [values.as_slice(), &special, &[f32::INFINITY, 0.6, -300.0], &[0.0; 5]] {
        let numbers = row.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let scale = if numbers > 0.0 && numbers.is_finite() { numbers / 127.0 } else { 1.0 };
        let expected = row.iter().map(|value| (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8);
        let matrix = Int8Matrix::of(Packing::Linear, &[1, row.len()]).unwrap();
        let panel = matrix.panel(0, None, |start, out| out.copy_from_slice(&row[start..start + out.len()]));
        let found = (0..row.len()).map(|i| panel[crate::cpu::product::bytes::place(i, 0)].cast_signed());
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
