//! The twin of `cuda.rs` for builds without CUDA: nobody locks pages.

use super::Source;
use crate::error::{Error, Result};

pub(super) fn source(_ordinal: usize, _write_combined: bool) -> Result<Box<dyn Source>> {
    Err(Error::NoCuda)
}
