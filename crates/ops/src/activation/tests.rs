use super::*;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    use Activation::*;
    for function in [Silu, QuickGelu, GeluErf, GeluTanh, Relu] {
        for shape in [vec![17], vec![3, 41], vec![2, 9001]] {
            let x = (random(&shape) * 6.0).unwrap();
            let expected = reference::forward(&exact(&x), function).unwrap();
            assert_close(&activation(&x, function, None).unwrap(), &expected, 2e-6);
            random_into(&expected, |out| activation(&x, function, Some(out)).unwrap(), 2e-6);
        }
    }
}

#[test]
fn nan_stays_nan() {
    use Activation::*;
    let x = Tensor::new(&[f32::NAN, 1.0, -1.0], &TARGET.0).unwrap();
    for function in [Silu, QuickGelu, GeluErf, GeluTanh, Relu] {
        let y: Vec<f32> = activation(&x, function, None).unwrap().to_vec1().unwrap();
        assert!(y[0].is_nan() && y[1..].iter().all(|y| y.is_finite()), "{function:?}: {y:?}");
    }
}
