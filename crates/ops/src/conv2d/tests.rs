use candle_core::Device;

use super::*;
use crate::Weight;
use crate::test_support::{TARGET, assert_close, exact, exact_weight, random, random_into, weight};

fn expected(inputs: Conv2dInputs<'_>, config: Conv2d) -> Tensor {
    reference::forward(inputs, config, check(&inputs, config, None).unwrap()).unwrap()
}

#[test]
fn kernel_agrees_with_the_reference() {
    // (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after): odd sizes, single pixels, few channels
    let cases = [
        (1, 8, 8, 4, 16, 3, 1, 1, 1),
        (2, 9, 13, 7, 5, 3, 1, 1, 1),
        (3, 1, 1, 3, 2, 3, 1, 1, 1),
        (2, 9, 7, 6, 10, 3, 2, 1, 1),
        (1, 8, 6, 6, 4, 3, 2, 0, 1),
        (2, 5, 4, 33, 17, 1, 1, 0, 0),
        (1, 40, 33, 64, 3, 3, 1, 1, 1),
        (1, 6, 6, 5, 4, 1, 2, 0, 0),
        // sizes for Winograd's algorithm on the CPU: odd sizes, few tiles and many, part of a panel
        (1, 8, 8, 32, 32, 3, 1, 1, 1),
        (2, 9, 13, 48, 40, 3, 1, 1, 1),
        (3, 11, 10, 144, 70, 3, 1, 0, 0),
        (1, 32, 31, 80, 96, 3, 1, 1, 1),
        (2, 8, 8, 32, 64, 3, 1, 1, 1),
        (1, 17, 19, 16, 24, 3, 1, 1, 1),
        (2, 33, 34, 48, 8, 3, 2, 1, 1),
        (1, 36, 36, 8, 40, 3, 2, 0, 1),
        (2, 7, 9, 64, 4, 3, 1, 1, 1),
        (1, 5, 7, 160, 8, 3, 2, 0, 1),
    ];
    for (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after) in cases {
        let config = Conv2d { stride, pad_before, pad_after };
        let (h_out, w_out) = (config.output_size(h, kernel).unwrap(), config.output_size(w, kernel).unwrap());
        let (x, weight) = (random(&[b, h, w, c_in]), weight(&[c_out, kernel, kernel, c_in]));
        let (bias, image_bias) = (random(&[c_out]), random(&[b, c_out]));
        let residual = random(&[b, h_out, w_out, c_out]);
        let inputs = Conv2dInputs {
            x: &x,
            weight: &weight,
            bias: Some(&bias),
            image_bias: Some(&image_bias),
            residual: Some(&residual),
        };
        let (x_f32, weight_f32) = (exact(&x), exact_weight(&weight));
        let (bias_f32, image_bias_f32, residual_f32) = (exact(&bias), exact(&image_bias), exact(&residual));
        let exact_inputs = Conv2dInputs {
            x: &x_f32,
            weight: &weight_f32,
            bias: Some(&bias_f32),
            image_bias: Some(&image_bias_f32),
            residual: Some(&residual_f32),
        };
        let wanted = expected(exact_inputs, config);
        assert_close(&conv2d(inputs, config, None).unwrap(), &wanted, 1e-5);
        random_into(&wanted, |out| conv2d(inputs, config, Some(out)).unwrap(), 1e-5);

        // One row of the time embedding for all images, as the sampler passes it.
        let (row, row_f32) = (image_bias.narrow(0, 0, 1).unwrap(), image_bias_f32.narrow(0, 0, 1).unwrap());
        let inputs = Conv2dInputs { image_bias: Some(&row), ..inputs };
        let exact_inputs = Conv2dInputs { image_bias: Some(&row_f32), ..exact_inputs };
        let wanted = expected(exact_inputs, config);
        assert_close(&conv2d(inputs, config, None).unwrap(), &wanted, 1e-5);

        let biased = Conv2dInputs { image_bias: None, residual: None, ..inputs };
        let exact_biased = Conv2dInputs { image_bias: None, residual: None, ..exact_inputs };
        assert_close(&conv2d(biased, config, None).unwrap(), &expected(exact_biased, config), 1e-5);

        let plain = Conv2dInputs { bias: None, image_bias: None, residual: None, ..inputs };
        let exact_plain = Conv2dInputs { bias: None, image_bias: None, residual: None, ..exact_inputs };
        assert_close(&conv2d(plain, config, None).unwrap(), &expected(exact_plain, config), 1e-5);
    }
}

/// Sizes for each width of the tiles of Hopper's kernel, which computes them with `KILN_CUDNN=off`. They are chosen for 132
/// multiprocessors.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn large_maps_agree_with_the_reference() {
    // (b, h, w, c_in, c_out): tiles of 64 output channels, several for a multiprocessor, then 128, 160 and 256. Channels that fill
    // a copied part, a half of one, and neither.
    let cases = [(3, 77, 75, 40, 48), (1, 96, 91, 64, 128), (1, 110, 106, 72, 160), (1, 115, 106, 24, 256)];
    for (b, h, w, c_in, c_out) in cases {
        let config = Conv2d::same(3);
        let (x, weight) = (random(&[b, h, w, c_in]), weight(&[c_out, 3, 3, c_in]));
        let (bias, image_bias, residual) = (random(&[c_out]), random(&[b, c_out]), random(&[b, h, w, c_out]));
        let plain = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
        let added =
            Conv2dInputs { bias: Some(&bias), image_bias: Some(&image_bias), residual: Some(&residual), ..plain };
        let (x_f32, weight_f32) = (exact(&x), exact_weight(&weight));
        let (bias_f32, image_bias_f32, residual_f32) = (exact(&bias), exact(&image_bias), exact(&residual));
        let exact_plain = Conv2dInputs { x: &x_f32, weight: &weight_f32, ..plain };
        let exact_added = Conv2dInputs {
            bias: Some(&bias_f32),
            image_bias: Some(&image_bias_f32),
            residual: Some(&residual_f32),
            ..exact_plain
        };
        assert_close(&conv2d(plain, config, None).unwrap(), &expected(exact_plain, config), 1e-5);
        random_into(&expected(exact_added, config), |out| conv2d(added, config, Some(out)).unwrap(), 1e-5);
    }
}

/// On the CPU, whatever the environment says: on a GPU only the same batch gives the same bits.
#[test]
fn an_image_has_the_same_bits_in_any_batch() {
    let on_cpu = |shape: &[usize]| random(shape).to_device(&Device::Cpu).unwrap();
    let (x, weight) = (on_cpu(&[5, 12, 12, 64]), Weight::plain(&on_cpu(&[64, 3, 3, 64])).unwrap());
    let image = |x: &Tensor| {
        let inputs = Conv2dInputs { x, weight: &weight, bias: None, image_bias: None, residual: None };
        conv2d(inputs, Conv2d::same(3), None).unwrap()
    };
    let (all, alone) = (image(&x).narrow(0, 4, 1).unwrap(), image(&x.narrow(0, 4, 1).unwrap()));
    assert_close(&all, &exact(&alone), 0.0);
}

/// On the CPU the same bits, whatever the rows of a strip; on GPUs the same up to rounding.
#[test]
fn strips_are_rows_of_the_whole_map() {
    // (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after)
    let cases = [
        (1, 13, 9, 7, 5, 3, 1, 1, 1),
        (2, 9, 13, 48, 40, 3, 1, 1, 1),
        (1, 32, 31, 80, 96, 3, 1, 1, 1),
        (1, 4, 17, 64, 32, 3, 1, 1, 1), // the whole map uses Winograd's algorithm, the strip alone would not
        (1, 10, 6, 33, 17, 1, 1, 0, 0),
        (1, 19, 6, 16, 16, 3, 2, 1, 1),
        (1, 12, 12, 32, 32, 3, 2, 0, 1),
        (1, 11, 10, 64, 4, 3, 1, 1, 1),
    ];
    for (b, h, w, c_in, c_out, kernel, stride, pad_before, pad_after) in cases {
        let config = Conv2d { stride, pad_before, pad_after };
        let (h_out, w_out) = (config.output_size(h, kernel).unwrap(), config.output_size(w, kernel).unwrap());
        let (x, weight, bias) = (random(&[b, h, w, c_in]), weight(&[c_out, kernel, kernel, c_in]), random(&[c_out]));
        let residual = random(&[b, h_out, w_out, c_out]);
        let inputs = Conv2dInputs { x: &x, weight: &weight, bias: Some(&bias), image_bias: None, residual: None };
        let whole = conv2d(Conv2dInputs { residual: Some(&residual), ..inputs }, config, None).unwrap();
        let tolerance = if TARGET.0.is_cpu() { 0.0 } else { 1e-5 };
        for rows in [4, 8, 12, h_out.next_multiple_of(STRIP_ROWS)] {
            for start in (0..h_out).step_by(rows) {
                let strip = Strip { height: h, rows: start..(start + rows).min(h_out) };
                let read = strip.input_rows(config, kernel);
                let part = x.narrow(1, read.start, read.len()).unwrap();
                let of = |map: &Tensor| map.narrow(1, start, strip.rows.len()).unwrap();
                let residual = of(&residual);
                let inputs = Conv2dInputs { x: &part, residual: Some(&residual), ..inputs };
                let wanted = exact(&of(&whole));
                assert_close(&conv2d_strip(inputs, config, &strip, None).unwrap(), &wanted, tolerance);
                random_into(&wanted, |out| conv2d_strip(inputs, config, &strip, Some(out)).unwrap(), tolerance);
            }
        }
    }
}

#[test]
fn refuses_an_invalid_strip() {
    let (x, weight) = (random(&[1, 4, 4, 3]), weight(&[2, 3, 3, 3]));
    let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
    let message =
        |height, rows| conv2d_strip(inputs, Conv2d::same(3), &Strip { height, rows }, None).unwrap_err().to_string();
    let expected = "expected rows that begin at a multiple of 4 and end in the result";
    assert_eq!(message(8, 3..5), format!("conv2d: rows 3..5 of 8 are not a valid strip; {expected}"));
    assert!(message(8, 4..9).contains(expected) && message(8, 4..4).contains(expected));
    assert!(message(8, 2..4).contains(expected));
    assert_eq!(message(8, 4..8), "conv2d: x has shape [1, 4, 4, 3], expected (b, 5, w, c_in): rows 3..8 of 8");
}

#[test]
fn bf16_stays_close_to_the_reference() {
    let half = |t: Tensor| t.to_dtype(candle_core::DType::BF16).unwrap();
    let wide = |t: &Tensor| t.to_dtype(candle_core::DType::F32).unwrap();
    let (x, kernel) = (half(random(&[2, 12, 9, 64])), half(random(&[48, 3, 3, 64])));
    let run = |x: &Tensor, weight: &Weight, forward: &dyn Fn(Conv2dInputs<'_>) -> Result<Tensor>| {
        forward(Conv2dInputs { x, weight, bias: None, image_bias: None, residual: None }).unwrap()
    };
    let exact = |inputs: Conv2dInputs<'_>| Ok(expected(inputs, Conv2d::same(3)));
    let expected = run(&wide(&x), &Weight::plain(&wide(&kernel)).unwrap(), &exact);
    let found = run(&x, &Weight::plain(&kernel).unwrap(), &|inputs| conv2d(inputs, Conv2d::same(3), None));
    // Transformed operands keep 8 bits, and their products are larger than the result.
    assert_close(&found, &expected, 1.0 / 64.0);
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let (x, weight) = (random(&[1, 4, 4, 3]), weight(&[2, 3, 3, 4]));
    let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
    let message = conv2d(inputs, Conv2d::same(3), None).unwrap_err().to_string();
    assert_eq!(message, "conv2d: x has shape [1, 4, 4, 3], expected (b, h, w, 4)");
}

#[test]
fn refuses_an_out_that_is_an_input() {
    let (x, weight) = (random(&[1, 4, 4, 3]), weight(&[3, 1, 1, 3]));
    let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
    assert!(matches!(conv2d(inputs, Conv2d::same(1), Some(&x)), Err(Error::Out { .. })));
}
