//! Work that is captured in its second run.

use candle_core::Device;

use super::{Graph, Prepared, prepare};
use crate::error::{Error, Result};

/// Work that runs once without capture, is captured in its second run, and replayed from then on.
pub enum Recording {
    /// It ran once, with all that libraries make on their first use.
    Prepared(Prepared),
    /// It is replayed.
    Captured(Graph),
    /// Part of it cannot be captured. It is launched kernel by kernel.
    Eager,
}

impl Recording {
    /// Runs `run` as [`prepare`] does.
    ///
    /// # Errors
    /// See [`prepare`]. The errors of `run` are in its result.
    pub fn first_run<T: Send>(device: &Device, run: impl FnOnce() -> T + Send) -> Result<(T, Self)> {
        let (result, prepared) = prepare(device, run)?;
        Ok((result, Self::Prepared(prepared)))
    }

    /// The first run, if it is the only one so far.
    pub fn prepared(&self) -> Option<&Prepared> {
        match self {
            Self::Prepared(prepared) => Some(prepared),
            Self::Captured(_) | Self::Eager => None,
        }
    }

    /// The captured work.
    pub fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Captured(graph) => Some(graph),
            Self::Prepared(_) | Self::Eager => None,
        }
    }

    /// Captures `run`, the work of the first run, if that was not tried before. Its memory is that of one of `others`, if one is
    /// large enough ([`Graph::record`]). Work that cannot be captured is logged as `what`, and stays [`Recording::Eager`].
    pub fn capture<E>(
        &mut self,
        what: &str,
        device: &Device,
        others: &[&Graph],
        run: impl FnOnce() -> Result<(), E> + Send,
    ) where
        E: From<Error> + Send + std::fmt::Display,
    {
        let Self::Prepared(prepared) = self else { return };
        *self = match Graph::record(device, prepared, others, run) {
            Ok(graph) => {
                tracing::info!(bytes = graph.bytes(), "recorded {what}");
                Self::Captured(graph)
            }
            Err(error) => {
                tracing::warn!("{what} is launched kernel by kernel, since it could not be recorded: {error}");
                Self::Eager
            }
        };
    }
}
