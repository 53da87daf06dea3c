use super::*;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for shape in [vec![1, 1], vec![2, 77, 33], vec![130, 320], vec![3, 5, 7, 19]] {
        let c = shape[shape.len() - 1];
        let (x, gamma, beta) = ((random(&shape) + 3.0).unwrap(), random(&[c]), random(&[c]));
        let expected = reference::forward(&exact(&x), &exact(&gamma), &exact(&beta), 1e-5).unwrap();
        let run = |out: Option<&Tensor>| layer_norm(&x, &gamma, &beta, 1e-5, out).unwrap();
        assert_close(&run(None), &expected, 1e-5);
        random_into(&expected, |out| run(Some(out)), 1e-5);
    }
}
