//! PSNR and SSIM against scikit-image; tests/reference/compare.py makes the values.

use kiln_compare::{psnr, ssim};

use crate::images::{noisy, pattern, values};

#[test]
fn values_are_those_of_scikit_image() {
    let [of_psnr, of_ssim] = ["psnr", "ssim"].map(values);
    assert_eq!((of_psnr.len(), of_ssim.len()), (8, 8));
    for (expected, similarity) in of_psnr.iter().zip(&of_ssim) {
        assert_eq!((expected.size, expected.amplitude), (similarity.size, similarity.amplitude));
        let [width, height] = expected.size;
        let first = pattern(width, height);
        let second = noisy(&first, expected.amplitude);
        let found = [psnr(first.data(), second.data()).unwrap(), ssim(&first, &second).unwrap()];
        println!("{width}x{height}: {found:?}, expected {} and {}", expected.value, similarity.value);
        assert!((found[0] - expected.value).abs() < 1e-9 && (found[1] - similarity.value).abs() < 1e-9);
        assert_eq!(ssim(&second, &first).unwrap(), found[1]);
    }
}
