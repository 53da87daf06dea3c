use super::*;
use crate::error::Error;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for (b, h, w, c, factor) in [(1, 3, 5, 3, 2), (2, 4, 3, 1, 3), (1, 2, 2, 7, 4), (2, 3, 4, 5, 1)] {
        let sizes = Sizes { b, h, w, c, factor };
        let (few, many) = (random(&sizes.few_pixels()), random(&sizes.many_pixels()));
        let expected = reference::forward(&exact(&few), sizes, true).unwrap();
        assert_close(&pixel_shuffle(&few, factor, None).unwrap(), &expected, 0.0);
        random_into(&expected, |out| pixel_shuffle(&few, factor, Some(out)).unwrap(), 0.0);
        let expected = reference::forward(&exact(&many), sizes, false).unwrap();
        assert_close(&pixel_unshuffle(&many, factor, None).unwrap(), &expected, 0.0);
        random_into(&expected, |out| pixel_unshuffle(&many, factor, Some(out)).unwrap(), 0.0);
        assert_close(
            &pixel_unshuffle(&pixel_shuffle(&few, factor, None).unwrap(), factor, None).unwrap(),
            &exact(&few),
            0.0,
        );
    }
}

#[test]
fn channels_are_in_the_order_of_pytorch() {
    // torch.nn.functional.pixel_shuffle(torch.arange(8.).reshape(1, 8, 1, 1), 2): two channels of a square
    let x = Tensor::arange(0f32, 8., &TARGET.0).unwrap().reshape((1, 1, 1, 8)).unwrap();
    let y = exact(&pixel_shuffle(&x, 2, None).unwrap()).permute([0, 3, 1, 2]).unwrap();
    let values = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!((y.dims(), values.as_slice()), (&[1, 2, 2, 2][..], &[0., 1., 2., 3., 4., 5., 6., 7.][..]));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let x = random(&[1, 3, 4, 6]);
    assert!(matches!(pixel_shuffle(&x, 2, None), Err(Error::Shape { .. })));
    assert!(matches!(pixel_shuffle(&x, 0, None), Err(Error::Shape { .. })));
    assert!(matches!(pixel_unshuffle(&x, 2, None), Err(Error::Shape { .. })));
    assert!(matches!(pixel_unshuffle(&x, 0, None), Err(Error::Shape { .. })));
}
