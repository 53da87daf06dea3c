//! Replaces `cuda.rs` in builds without CUDA, which cannot pin memory.

use super::Source;
use crate::error::{Error, Result};

pub(super) fn source(_ordinal: usize, _write_combined: bool) -> Result<Box<dyn Source>> {
    Err(Error::NoCuda)
}
