use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for shape in [vec![3, 22], vec![2, 77, 66], vec![130, 640]] {
        let x = (random(&shape) * 4.0).unwrap();
        let expected = reference::forward(&exact(&x)).unwrap();
        assert_close(&geglu(&x, None).unwrap(), &expected, 2e-6);
        random_into(&expected, |out| geglu(&x, Some(out)).unwrap(), 2e-6);
    }
}

#[test]
fn refuses_an_odd_width() {
    assert!(matches!(geglu(&random(&[2, 3]), None), Err(Error::Shape { .. })));
}
