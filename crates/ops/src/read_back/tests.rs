use super::*;
use crate::test_support::{assert_close, exact, random};
use crate::{Activation, activation};

#[test]
fn copies_have_the_values_of_their_time() {
    // Of six bits, so that no type rounds.
    let x = ((random(&[64, 256]) * 64.0).unwrap().round().unwrap() / 64.0).unwrap();
    let mut expected = exact(&x);
    let (mut y, mut copies) = (x, Vec::new());
    for round in 0..8 {
        // Work before each copy, and a tensor that is written after it and dropped.
        y = activation(&y, Activation::Relu, None).unwrap();
        expected = expected.relu().unwrap();
        copies.push((ReadBack::start(&y).unwrap(), expected.clone()));
        copies.push((ReadBack::start(&y.narrow(1, round, 5).unwrap()).unwrap(), expected.narrow(1, round, 5).unwrap()));
        y = (y - 0.25).unwrap();
        expected = (expected - 0.25).unwrap();
    }
    drop(copies.swap_remove(3));
    drop(y);
    for (copy, expected) in copies {
        let found = copy.wait().unwrap();
        assert!(found.device().is_cpu());
        assert_close(&found, &expected, 0.0);
    }
}
