use super::*;
use crate::test_support::{assert_close, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    use Activation::*;
    for function in [Silu, QuickGelu, GeluErf, Relu] {
        for shape in [vec![17], vec![3, 41], vec![2, 9001]] {
            let x = (random(&shape) * 6.0).unwrap();
            let expected = reference::forward(&x, function).unwrap();
            assert_close(&activation(&x, function, None).unwrap(), &expected, 2e-6);
            random_into(&expected, |out| activation(&x, function, Some(out)).unwrap(), 2e-6);
        }
    }
}
