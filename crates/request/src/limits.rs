//! Bounds of a request's values, for crates that take values of their own beside it, and the seeds that are drawn.

use kiln_models::limits;

use crate::error::{Error, Result};
pub use crate::options::MAX_IMAGES;

/// Refuses a number outside of its bounds.
///
/// # Errors
/// [`Error::Value`] with the nearest possible value.
pub fn in_range(name: &'static str, value: usize, min: usize, max: usize) -> Result<usize> {
    limits::in_range(value, min, max).map_err(|error| Error::out_of_range(name, error))
}

/// Refuses a side of an image that is no multiple of `multiple`, the pixels that one latent covers.
///
/// # Errors
/// [`Error::Value`] with the nearest possible value.
pub fn side(name: &'static str, value: usize, multiple: usize) -> Result<usize> {
    limits::side(value, multiple).map_err(|error| Error::out_of_range(name, error))
}

/// Refuses more images than a job may have.
///
/// # Errors
/// [`Error::Value`].
pub(crate) fn check_images(batch_count: usize, batch_size: usize) -> Result<()> {
    let images = batch_count.saturating_mul(batch_size);
    in_range("`batch_count` times `batch_size`", images, 1, MAX_IMAGES).map(drop)
}

/// A seed from the system's randomness. 32 bits: what AUTOMATIC1111 draws, and all that PyTorch's CPU generator uses.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_side_names_the_nearest() {
        let message = |value| side("width", value, 8).unwrap_err().to_string();
        assert_eq!(message(100), "`width` is 100, expected a multiple of 8 from 8 to 16384; the nearest is 104");
        assert!(message(0).ends_with("the nearest is 8"));
        assert!(message(99_999_999).ends_with("the nearest is 16384"));
        assert_eq!(side("width", 512, 8).unwrap(), 512);
    }
}
