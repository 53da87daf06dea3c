//! The memory of a loaded segment.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Tensor;
use kiln_ops::Weight;

/// The memory of a loaded segment.
pub(crate) struct Slab {
    /// One view for each parameter, all into the same storage.
    pub(crate) views: Vec<View>,
    /// One for each [`Stack`]; `None` for matrices in 8-bit integers or of several types, which are read one by one.
    pub(crate) stacks: Vec<Option<View>>,
    /// The memory of all views, flat.
    pub(crate) memory: Tensor,
    /// Keeps a slab on the CPU known to those that share it.
    pub(crate) held: Option<Arc<Tensor>>,
}

/// The memory of a loaded segment.
pub(crate) struct Contents {
    /// Flat, on the device of the slab.
    pub(crate) memory: Tensor,
    /// See [`Slab::held`].
    pub(crate) held: Option<Arc<Tensor>>,
    /// The added biases by the index of the layer's matrix.
    pub(crate) biases: HashMap<usize, Tensor>,
}

/// Adjacent matrices in the slab that also form one matrix, or vectors that form one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    /// The index of the first one.
    pub(crate) first: usize,
    /// The number of matrices.
    pub(crate) count: usize,
}

/// A parameter in a slab.
pub(crate) enum View {
    /// A tensor in the checkpoint's layout.
    Tensor(Tensor),
    /// A weight that is packed for a matrix product.
    Weight(Weight),
}
