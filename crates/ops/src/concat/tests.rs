use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_candle() {
    for (outer, m, n) in [(vec![2, 3, 4], 5, 7), (vec![1], 1, 0), (vec![2, 77], 32, 48)] {
        let (a, b) = (random(&[outer.as_slice(), &[m]].concat()), random(&[outer.as_slice(), &[n]].concat()));
        let expected = Tensor::cat(&[&exact(&a), &exact(&b)], outer.len()).unwrap();
        assert_close(&concat_channels(&a, &b, None).unwrap(), &expected, 0.0);
        random_into(&expected, |out| concat_channels(&a, &b, Some(out)).unwrap(), 0.0);
    }
}

#[test]
fn refuses_different_outer_dimensions() {
    assert!(matches!(concat_channels(&random(&[2, 3]), &random(&[3, 3]), None), Err(Error::Shape { .. })));
}
