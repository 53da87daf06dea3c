use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for shape in [
        vec![1, 1, 8],
        vec![3, 77, 33],
        vec![2, 5, 3, 320],
        vec![2, 4096],
        vec![1, 9, 5000],
        vec![19],
        vec![2, 24, 64],
        vec![3, 7, 128],
        vec![5, 16],
    ] {
        let (b, c) = (if shape.len() > 1 { shape[0] } else { 1 }, shape[shape.len() - 1]);
        let x = (random(&shape) + 0.5).unwrap();
        let gamma = random(&[c]);
        let wide = random(&[b, 3 * c]);
        let [scale, shift] = [0, 2 * c].map(|start| wide.narrow(1, start, c).unwrap());
        let (one_scale, one_shift) = (random(&[1, c]), random(&[1, c]));
        for norm in [RowNorm::Layer, RowNorm::Rms] {
            for form in 0..5 {
                let [gamma, scale, shift] = match form {
                    0 => [None; 3],
                    1 => [Some(&gamma), None, None],
                    2 => [None, Some(&scale), Some(&shift)],
                    3 => [Some(&gamma), Some(&one_scale), None],
                    _ => [Some(&gamma), Some(&scale), Some(&one_shift)],
                };
                let call = |out: Option<&Tensor>| {
                    modulated_norm(ModulatedNormOp { x: &x, norm, gamma, scale, shift, eps: 1e-6 }, out).unwrap()
                };
                let exact_x = exact(&x);
                let operands = [gamma, scale, shift].map(|x| x.map(exact));
                let [gamma, scale, shift] = [0, 1, 2].map(|i| operands[i].as_ref());
                let op = ModulatedNormOp { x: &exact_x, norm, gamma, scale, shift, eps: 1e-6 };
                let expected = reference::forward(&op).unwrap();
                assert_close(&call(None), &expected, 1e-5);
                random_into(&expected, |out| call(Some(out)), 1e-5);
            }
        }
    }
}

#[test]
fn a_mean_square_of_one() {
    let x = Tensor::new(&[[3f32, 4.0], [0.0, 2.0]], &candle_core::Device::Cpu).unwrap();
    let y: Vec<Vec<f32>> = rms_norm(&x, None, 0.0, None).unwrap().to_vec2().unwrap();
    let root = 12.5f32.sqrt();
    for (y, x) in y.concat().iter().zip([3.0 / root, 4.0 / root, 0.0, 2f32.sqrt()]) {
        assert!((y - x).abs() < 1e-6, "{y}, expected {x}");
    }
}

#[test]
fn refuses_vectors_that_do_not_fit() {
    let x = random(&[2, 3, 4]);
    let error = rms_norm(&x, Some(&random(&[3])), 1e-6, None).unwrap_err();
    assert_eq!(error.to_string(), "modulated_norm: gamma has shape [3], expected [4]");
    for scale in [random(&[4]), random(&[3, 4]), random(&[2, 3])] {
        let op =
            ModulatedNormOp { x: &x, norm: RowNorm::Layer, gamma: None, scale: Some(&scale), shift: None, eps: 1e-6 };
        assert!(matches!(modulated_norm(op, None), Err(Error::Shape { operand: "scale", .. })));
    }
}
