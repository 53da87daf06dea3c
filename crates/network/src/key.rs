//! The properties of inputs that two calls need to have in common.

use crate::slot::Slot;

/// Shapes and constants of [`crate::Inputs`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InputKey {
    pub(crate) tensors: Vec<TensorKey>,
    pub(crate) constants: Vec<(&'static str, usize, u64)>,
    /// Numbers of last rows.
    pub(crate) counts: Vec<(&'static str, usize)>,
}

/// The key of one tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TensorKey {
    pub(crate) slot: Slot,
    pub(crate) index: usize,
    pub(crate) dims: Vec<usize>,
    /// The identity of the values, if they have to be the same.
    pub(crate) tag: Option<u64>,
}
