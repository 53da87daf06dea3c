use super::*;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for (h, w, h_out, w_out) in [(4, 4, 8, 8), (5, 7, 9, 13), (1, 1, 2, 1), (3, 2, 3, 2)] {
        let x = random(&[2, h, w, 5]);
        let expected = reference::forward(&exact(&x), &sources(h, h_out), &sources(w, w_out)).unwrap();
        assert_close(&upsample_nearest(&x, (h_out, w_out), None).unwrap(), &expected, 0.0);
        random_into(&expected, |out| upsample_nearest(&x, (h_out, w_out), Some(out)).unwrap(), 0.0);
    }
}

#[test]
fn odd_sizes_use_the_same_pixels_as_pytorch() {
    // torch.nn.functional.interpolate(torch.arange(5.)[None, None], size=9, mode="nearest")
    assert_eq!(sources(5, 9), [0, 0, 1, 1, 2, 2, 3, 3, 4]);
}
