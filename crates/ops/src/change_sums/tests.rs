use candle_core::Device;

use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random};

#[test]
fn kernel_agrees_with_the_reference() {
    // Less than a part, a whole part, and several of which the last one is shorter.
    for shape in [vec![1, 5], vec![3, 4, 7, 33], vec![2, CHANGE_PART], vec![2, 77, 300]] {
        let (now, before) = (random(&shape), random(&shape));
        let expected = Call { now: &exact(&now), before: &exact(&before) }.reference().unwrap();
        let found = change_sums(&now, &before, None).unwrap();
        assert_eq!(found.dims(), [shape[0], shape[1..].iter().product::<usize>().div_ceil(CHANGE_PART), 2]);
        assert_close(&found, &expected, 1e-5); // sums of thousands of numbers in two orders
    }
}

#[test]
fn an_image_has_the_same_sums_in_every_batch() {
    let (now, before) = (random(&[3, 50, 333]), random(&[3, 50, 333]));
    let values = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let all = values(change_sums(&now, &before, None).unwrap());
    let row = |x: &Tensor| x.narrow(0, 1, 1).unwrap();
    let one = values(change_sums(&row(&now), &row(&before), None).unwrap());
    assert_eq!(one, all[one.len()..2 * one.len()]);
}

#[test]
fn nothing_has_changed_from_zeros_to_zeros() {
    let zeros = Tensor::zeros((1, 9), DType::F16, &Device::Cpu).unwrap();
    let found = change_sums(&zeros, &zeros, None).unwrap();
    assert_eq!(found.to_vec3::<f32>().unwrap(), vec![vec![vec![0.0, 0.0]]]);
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let (now, before) = (random(&[2, 3, 4]), random(&[2, 12]));
    assert!(matches!(change_sums(&now, &before, None), Err(Error::Shape { operand: "before", .. })));
}
