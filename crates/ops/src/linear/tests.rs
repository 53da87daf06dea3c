use super::*;
use crate::test_support::{assert_close, exact, exact_weight, random, random_into, weight};

#[test]
fn kernel_agrees_with_the_reference() {
    for (outer, k, n) in [
        (vec![1], 5, 3),
        (vec![2, 77], 33, 65),
        (vec![3, 5, 7], 16, 1),
        (vec![300], 320, 40),
        (vec![2], 640, 31),
        (vec![8192], 320, 320),
    ] {
        let x = random(&[outer.as_slice(), &[k]].concat());
        let (weight, bias) = (weight(&[n, k]), random(&[n]));
        let residual = random(&[outer.as_slice(), &[n]].concat());
        let run = |out: Option<&Tensor>| linear(&x, &weight, Some(&bias), Some(&residual), out).unwrap();
        let (bias_f32, residual_f32) = (exact(&bias), exact(&residual));
        let expected =
            reference::forward(&exact(&x), &exact_weight(&weight), Some(&bias_f32), Some(&residual_f32)).unwrap();
        assert_close(&run(None), &expected, 1e-5);
        random_into(&expected, |out| run(Some(out)), 1e-5);
    }
}

#[test]
fn half_precision_rounds_once() {
    let half = |t: Tensor| t.to_dtype(candle_core::DType::BF16).unwrap();
    let (x, weight) = (half(random(&[9, 40])), half(random(&[12, 40])));
    let weight = Weight::plain(&weight).unwrap();
    let expected = reference::forward(&exact(&x), &exact_weight(&weight), None, None).unwrap();
    assert_close(&linear(&x, &weight, None, None, None).unwrap(), &expected, 1.0 / 256.0); // bf16 keeps 8 bits
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let error = linear(&random(&[2, 3]), &weight(&[4, 5]), None, None, None).unwrap_err();
    assert_eq!(error.to_string(), "linear: x has shape [2, 3], expected (.., 5)");
}
