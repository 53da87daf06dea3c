use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random};

#[test]
fn the_two_conversions_are_inverse() {
    for shape in [[2, 4, 5, 7], [1, 3, 64, 33], [3, 1, 1, 1]] {
        let x = random(&shape);
        let last = to_channels_last(&x).unwrap();
        assert_close(&last, &exact(&x).permute((0, 2, 3, 1)).unwrap(), 0.0);
        assert_close(&to_channels_first(&last).unwrap(), &exact(&x), 0.0);
    }
}

#[test]
fn refuses_other_ranks() {
    assert!(matches!(to_channels_last(&random(&[2, 3, 4])), Err(Error::Shape { .. })));
}
