use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    use Activation::*;
    for function in [Silu, QuickGelu, GeluErf, GeluTanh, Relu] {
        for shape in [vec![3, 22], vec![2, 77, 66], vec![130, 640], vec![1, 34_000]] {
            let x = (random(&shape) * 4.0).unwrap();
            let n = shape[shape.len() - 1] / 2;
            let expected = reference::forward(&Call { function, gate: &exact(&x), values: None }).unwrap();
            assert_close(&gated_activation(function, &x, None, None).unwrap(), &expected, 2e-6);
            random_into(&expected, |out| gated_activation(function, &x, None, Some(out)).unwrap(), 2e-6);
            // The halves as tensors of their own, one of them a slice.
            let last = shape.len() - 1;
            let (gate, values) = (x.narrow(last, 0, n).unwrap(), x.narrow(last, n, n).unwrap().copy().unwrap());
            assert_close(&gated_activation(function, &gate, Some(&values), None).unwrap(), &expected, 2e-6);
        }
        // A slice of wider rows.
        let wide = random(&[2, 5, 96]);
        for (first, width) in [(32, 64), (7, 66)] {
            let slice = wide.narrow(2, first, width).unwrap();
            let expected = reference::forward(&Call { function, gate: &exact(&slice), values: None }).unwrap();
            assert_close(&gated_activation(function, &slice, None, None).unwrap(), &expected, 2e-6);
        }
    }
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let silu = Activation::Silu;
    assert!(matches!(gated_activation(silu, &random(&[2, 3]), None, None), Err(Error::Shape { .. })));
    let error = gated_activation(silu, &random(&[2, 3]), Some(&random(&[3, 2])), None).unwrap_err();
    assert_eq!(error.to_string(), "gated_activation: values has shape [3, 2], expected [2, 3]");
}
