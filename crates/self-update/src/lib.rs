//! Replaces a program that an install script put on this machine by a newer release.
//!
//! The script leaves a [`Receipt`], which names the program and where releases come from. Without one that names this program,
//! another tool owns the file, and [`Error::NotInstalled`] says how to update it there. A release is a `SHA256SUMS` and a zip archive
//! for each platform. Its sum is checked and the new program is started once before the old one is replaced.
//!
//! Nothing here runs by itself: only [`newest`] and [`Release::install`] make connections.
#![forbid(unsafe_code)]

mod error;
mod fetch;
mod install;
mod origin;
mod receipt;
mod release;

pub use error::{Error, Result};
pub use receipt::Receipt;
pub use release::{Release, newest};
