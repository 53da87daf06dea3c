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
        (vec![2, 65, 66, 40], 4), // several blocks for a group: CUDA's kernels split the pixels
        (vec![1, 190, 190, 3], 3),
        (vec![2, 64, 64, 320], 32),
    ] {
        let c = shape[shape.len() - 1];
        // With a mean away from zero, cancellation in the variance would show.
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

/// On the CPU the same bits as the whole, whatever the size of the strips; on GPUs the same up to rounding.
#[test]
fn strips_are_normalized_like_the_whole_map() {
    for (shape, num_groups) in [([1, 33, 31, 40], 5), ([1, 64, 64, 32], 8), ([1, 7, 5, 6], 3), ([1, 40, 100, 8], 2)] {
        let [_, h, _, c] = shape;
        let x = (random(&shape) + 4.0).unwrap();
        let (gamma, beta) = (random(&[c]), random(&[c]));
        let config = GroupNorm { num_groups, eps: 1e-6, silu: true };
        let whole = exact(&group_norm(&x, &gamma, &beta, config, None).unwrap());
        let tolerance = if x.device().is_cpu() { 0.0 } else { 5e-5 };
        for rows in [1, 3, 8, h] {
            let strips = || (0..h).step_by(rows).map(|start| (start, rows.min(h - start)));
            let mut moments = GroupNormMoments::new(config);
            strips().for_each(|(start, rows)| moments.add(&x.narrow(1, start, rows).unwrap()).unwrap());
            let statistics = moments.finish(&gamma, &beta).unwrap();
            for (start, rows) in strips() {
                let (strip, wanted) = (x.narrow(1, start, rows).unwrap(), whole.narrow(1, start, rows).unwrap());
                assert_close(&group_norm_apply(&strip, &statistics, None).unwrap(), &wanted, tolerance);
                random_into(&wanted, |out| group_norm_apply(&strip, &statistics, Some(out)).unwrap(), tolerance);
            }
        }
    }
}

#[test]
fn the_reference_joins_moments() {
    let (x, gamma, beta) = (exact(&(random(&[1, 9, 10, 12]) + 2.0).unwrap()), random(&[12]), random(&[12]));
    let (gamma, beta) = (exact(&gamma), exact(&beta));
    let config = GroupNorm { num_groups: 3, eps: 1e-6, silu: true };
    let strip = |start, rows| x.narrow(1, start, rows).unwrap();
    let first = reference::moments(&strip(0, 4), config, None).unwrap();
    let both = reference::moments(&strip(4, 5), config, Some((&first, 40))).unwrap();
    let wanted = reference::forward(&x, &gamma, &beta, config).unwrap().narrow(1, 2, 3).unwrap();
    let found = reference::apply(&strip(2, 3), &gamma, &beta, (&both, 90), config).unwrap();
    assert_close(&found, &wanted, 1e-5);
}

#[test]
fn refuses_pixels_of_different_images_or_channels() {
    let config = GroupNorm { num_groups: 2, eps: 1e-5, silu: false };
    let mut moments = GroupNormMoments::new(config);
    let message = moments.add(&random(&[2, 4, 4, 8])).unwrap_err().to_string();
    assert_eq!(message, "group_norm: x has shape [2, 4, 4, 8], expected (1, .., 8)");
    let message = moments.finish(&random(&[8]), &random(&[8])).err().unwrap().to_string();
    assert_eq!(message, "group_norm: no pixel was added to the moments");
    let mut moments = GroupNormMoments::new(config);
    moments.add(&random(&[1, 4, 4, 8])).unwrap();
    let statistics = moments.finish(&random(&[8]), &random(&[8])).unwrap();
    let message = group_norm_apply(&random(&[1, 4, 4, 6]), &statistics, None).unwrap_err().to_string();
    assert_eq!(message, "group_norm: x has shape [1, 4, 4, 6], expected (1, .., 8)");
}
