//! Running a module that has a segment of its own.

use kiln_weights::Staged;

use crate::error::{At, Error, Result};

/// Runs a staged module with its weights in place; an error carries the segment's name.
pub trait Run<M> {
    /// Gives `f` the module, once its weights are there.
    fn run<T>(&self, f: impl FnOnce(&M) -> Result<T>) -> Result<T>;
}

impl<M> Run<M> for Staged<M> {
    fn run<T>(&self, f: impl FnOnce(&M) -> Result<T>) -> Result<T> {
        self.enter().map_err(Error::from).and_then(|module| f(&module)).at(self.segment().name())
    }
}
