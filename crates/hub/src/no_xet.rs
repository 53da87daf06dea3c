//! Builds without the feature `xet`: every file comes over plain HTTP.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::mpsc::Receiver;

use crate::api::XetAccess;
use crate::error::Result;
use crate::http::Reply;

/// No client of the Xet storage.
pub(crate) struct Xet;

/// There are no transfers.
pub(crate) struct XetTransfer(#[allow(dead_code)] Infallible);

impl Xet {
    pub(crate) fn new(_: bool) -> Self {
        Self
    }

    pub(crate) fn is_enabled(&self) -> bool {
        false
    }

    pub(crate) fn start(
        &self,
        _: &XetAccess,
        _: &str,
        _: Range<u64>,
    ) -> Result<Result<(XetTransfer, Receiver<Reply>), String>> {
        Ok(Err("this build cannot read the Xet storage".into()))
    }
}
