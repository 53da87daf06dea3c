//! The limits of requests to any model. Functions do not know the name of a value; callers add it.

use std::fmt;

/// Larger sizes in pixels are errors.
pub const MAX_SIDE: usize = 16384;
/// More steps than any model was trained with are errors.
pub const MAX_STEPS: usize = 1000;
/// A larger guidance scale only produces noise.
const MAX_GUIDANCE: f64 = 1000.0;

/// A value outside its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfRange {
    /// The value.
    pub found: String,
    /// The allowed values, with the nearest one if it exists.
    pub expected: String,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is {}, expected {}", self.found, self.expected)
    }
}

impl std::error::Error for OutOfRange {}

/// Checks that a number is within its bounds.
///
/// # Errors
/// If it is outside them.
pub fn in_range(value: usize, min: usize, max: usize) -> Result<usize, OutOfRange> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(OutOfRange { found: value.to_string(), expected: format!("a number from {min} to {max}") })
}

/// Checks the strength of classifier-free guidance.
///
/// # Errors
/// If it is outside 0 to 1000.
pub fn guidance(value: f64) -> Result<f64, OutOfRange> {
    if (0.0..=MAX_GUIDANCE).contains(&value) {
        return Ok(value);
    }
    let expected = "a number from 0 to 1000 (usual: 3 to 12)".into();
    Err(OutOfRange { found: format!("{value:?}"), expected }) // {:?}: 1e300, not 300 zeros
}

/// Checks the width or height of an image in pixels: a multiple of the size of a latent pixel.
///
/// # Errors
/// If it is 0, larger than [`MAX_SIDE`], or not a multiple.
pub fn side(value: usize, multiple: usize) -> Result<usize, OutOfRange> {
    if (1..=MAX_SIDE).contains(&value) && value.is_multiple_of(multiple) {
        return Ok(value);
    }
    let nearest = ((value.min(MAX_SIDE) + multiple / 2) / multiple * multiple).clamp(multiple, MAX_SIDE);
    let expected = format!("a multiple of {multiple} from {multiple} to {MAX_SIDE}; the nearest is {nearest}");
    Err(OutOfRange { found: value.to_string(), expected })
}
