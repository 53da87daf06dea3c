use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for shape in [vec![1, 5], vec![2, 77, 33], vec![3, 4, 5, 64], vec![2, 300, 320]] {
        let (b, c) = (shape[0], shape[shape.len() - 1]);
        let (x, y) = (random(&shape), random(&shape));
        let wide = random(&[b, 3 * c]);
        for gate in [wide.narrow(1, c, c).unwrap(), random(&[1, c])] {
            let expected = Call { x: &exact(&x), gate: &exact(&gate), y: &exact(&y) }.reference().unwrap();
            assert_close(&gated_residual(&x, &gate, &y, None).unwrap(), &expected, 1e-6);
            random_into(&expected, |out| gated_residual(&x, &gate, &y, Some(out)).unwrap(), 1e-6);
        }
    }
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let (x, gate) = (random(&[2, 3, 4]), random(&[2, 4]));
    assert!(matches!(gated_residual(&x, &random(&[4]), &x, None), Err(Error::Shape { operand: "gate", .. })));
    assert!(matches!(gated_residual(&x, &gate, &gate, None), Err(Error::Shape { operand: "y", .. })));
}
