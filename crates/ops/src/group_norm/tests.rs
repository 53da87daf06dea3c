use super::*;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for (shape, num_groups) in [
        (vec![2, 8, 8, 32], 8),
        (vec![1, 1, 1, 6], 3),
        (vec![3, 17, 19, 12], 12),
        (vec![2, 40, 10], 5),
        (vec![1, 33, 33, 7], 1),
        (vec![2, 65, 66, 40], 4), // more than one block a group: kernels for cards split the pixels
        (vec![1, 190, 190, 3], 3),
        (vec![2, 64, 64, 320], 32),
    ] {
        let c = shape[shape.len() - 1];
        // A mean away from zero shows whether the variance cancels.
        let x = (random(&shape) + 4.0).unwrap();
        let (gamma, beta) = (random(&[c]), random(&[c]));
        for silu in [false, true] {
            let config = GroupNorm { num_groups, eps: 1e-5, silu };
            let expected = reference::forward(&exact(&x), &exact(&gamma), &exact(&beta), config).unwrap();
            let run = |out: Option<&Tensor>| group_norm(&x, &gamma, &beta, config, out).unwrap();
            assert_close(&run(None), &expected, 5e-5);
            random_into(&expected, |out| run(Some(out)), 5e-5);
        }
    }
}

#[test]
fn an_image_has_the_same_bits_in_any_batch() {
    let x = random(&[3, 20, 20, 16]);
    let (gamma, beta) = (random(&[16]), random(&[16]));
    let config = GroupNorm { num_groups: 4, eps: 1e-6, silu: true };
    let whole = group_norm(&x, &gamma, &beta, config, None).unwrap();
    let alone = group_norm(&x.narrow(0, 1, 1).unwrap(), &gamma, &beta, config, None).unwrap();
    assert_close(&whole.narrow(0, 1, 1).unwrap(), &alone, 0.0);
}

#[test]
fn refuses_groups_that_do_not_divide() {
    let config = GroupNorm { num_groups: 5, eps: 1e-5, silu: false };
    let error = group_norm(&random(&[1, 2, 2, 8]), &random(&[8]), &random(&[8]), config, None).unwrap_err();
    assert_eq!(error.to_string(), "group_norm: 5 groups do not divide 8 channels");
}
