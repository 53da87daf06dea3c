//! PSNR: the peak signal-to-noise ratio.

use crate::error::{Error, Result};

/// With so many dB an image counts in a mean, if it has more: equal images are infinite and would hide all others.
pub const MOST_IN_MEAN: f64 = 100.0;

/// The peak signal-to-noise ratio of values from 0 to 255 in dB, infinite for equal ones. The values of all channels count alike.
///
/// # Errors
/// [`Error::Sizes`] for different numbers of values, and without any.
pub fn psnr(a: &[u8], b: &[u8]) -> Result<f64> {
    if a.len() != b.len() || a.is_empty() {
        let values = |side: &[u8]| format!("{} values", side.len());
        return Err(Error::Sizes { a: values(a), b: values(b) });
    }
    let squares: u64 = a.iter().zip(b).map(|(&a, &b)| u64::from(a.abs_diff(b)).pow(2)).sum();
    Ok(10.0 * (f64::from(u8::MAX).powi(2) * a.len() as f64 / squares as f64).log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_decibels() {
        assert!(psnr(&[7, 8], &[7, 8]).unwrap().is_infinite());
        assert_eq!(psnr(&[0, 255], &[255, 0]).unwrap(), 0.0);
        let expected = 10.0 * (65025.0f64 / 6.25).log10();
        assert!((psnr(&[10, 10, 10, 10], &[10, 10, 10, 15]).unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        for (a, b) in [(&[][..], &[][..]), (&[1], &[]), (&[1], &[1, 2])] {
            assert!(matches!(psnr(a, b), Err(Error::Sizes { .. })));
        }
    }
}
