//! The error of Winograd's algorithm in f32, measured against sums over taps in f64.

use candle_core::{DType, Device, Tensor};

use crate::Weight;
use crate::conv2d::{Conv2d, Conv2dInputs, conv2d};
use crate::test_support::random;

/// The values of a random tensor in f32 on the CPU.
fn values(shape: &[usize], offset: f32) -> Vec<f32> {
    let random = random(shape).to_dtype(DType::F32).unwrap().to_device(&Device::Cpu).unwrap();
    random.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(|value| value + offset).collect()
}

/// A 3x3 convolution in f64, with zeros around the map. Only the taps of a pixel that lie in the map are summed.
fn in_f64(x: &[f32], weight: &[f32], [h, w, c_in, c_out]: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.0; h * w * c_out];
    for (pixel, y) in y.chunks_exact_mut(c_out).enumerate() {
        for tap in 0..9 {
            let (row, column) = (pixel / w + tap / 3, pixel % w + tap % 3);
            if (1..=h).contains(&row) && (1..=w).contains(&column) {
                let x = &x[((row - 1) * w + column - 1) * c_in..][..c_in];
                for (y, weight) in y.iter_mut().zip(weight.chunks_exact(9 * c_in)) {
                    let weight = &weight[tap * c_in..][..c_in];
                    *y += x.iter().zip(weight).map(|(x, weight)| f64::from(*x) * f64::from(*weight)).sum::<f64>();
                }
            }
        }
    }
    y
}

/// Errors relative to the standard deviation of the result, which grow with the root of the number of channels: 1.6e-6 with 320.
/// F(4x4, 3x3) at 0, ±1, ±2 and infinity has twice the error, and with wrong constants it is thousands of times as large.
#[test]
fn winograds_algorithm_in_f32_keeps_six_digits() {
    // (h, w, c_in, c_out), and the mean of the input: whole tiles and odd sizes, short sums and long ones
    let cases = [([16, 16, 320, 32], 0.0), ([9, 13, 64, 40], 0.0), ([18, 17, 160, 32], 0.5), ([8, 8, 1280, 32], 0.0)];
    for (sizes @ [h, w, c_in, c_out], mean) in cases {
        let (x, weight) = (values(&[1, h, w, c_in], mean), values(&[c_out, 3, 3, c_in], 0.0));
        let expected = in_f64(&x, &weight, sizes);
        let x = Tensor::from_vec(x, (1, h, w, c_in), &Device::Cpu).unwrap();
        let weight = Weight::plain(&Tensor::from_vec(weight, (c_out, 3, 3, c_in), &Device::Cpu).unwrap()).unwrap();
        let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
        let found = conv2d(inputs, Conv2d::same(3), None).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let count = expected.len() as f64;
        let mean_of = |values: &dyn Fn(usize) -> f64| (0..expected.len()).map(values).sum::<f64>() / count;
        let mean = mean_of(&|i| expected[i]);
        let deviation = mean_of(&|i| (expected[i] - mean).powi(2)).sqrt();
        let error = |i: usize| (f64::from(found[i]) - expected[i]).abs() / deviation;
        let (typical, largest) =
            (mean_of(&|i| error(i).powi(2)).sqrt(), (0..found.len()).map(error).fold(0.0, f64::max));
        let bound = 1.2e-7 * (c_in.max(320) as f64).sqrt();
        assert!(typical < bound && largest < 12.0 * bound, "{sizes:?}: error {typical:.1e}, at most {largest:.1e}");
    }
}
