//! Matrices of linear layers that stay as their file stores them.

use std::collections::HashMap;

use kiln_ops::{BlockType, MatrixType, Packing};

use crate::param_spec::{ParamSpec, SlabType, StoredRows};
use crate::segment::{Segment, Segments, Stack};
use crate::source::ParamSource;

/// The type of a matrix whose file has another one of at most 8 bits, if patches are merged into it. Its own rounding errors
/// are far below those of the types that it replaces.
const MERGED: MatrixType = MatrixType::Blocks(BlockType::Q8_0);

impl Segments {
    /// Keeps the matrices of linear layers from the next load on in the types in which `source` stores them, where these are types
    /// of at most 8 bits. `source` has the parameters without patches; those of which `is_changed` says that patches are merged
    /// into them are stored in blocks of 8 bits. A [`SlabType::matrices`] of all matrices goes before.
    pub fn keep_stored(&self, source: &dyn ParamSource, is_changed: impl Fn(&str) -> bool) {
        let of = |param: &ParamSpec| {
            let kind = source.info(&param.key)?.dtype.matrix()?;
            let kind = if is_changed(&param.key) { MERGED } else { kind };
            param.rows_of(kind).map(|rows| rows.kind)
        };
        for segment in self.iter() {
            let params = segment.params().iter().enumerate();
            segment.set_kept(params.filter_map(|(i, param)| Some((i, of(param)?))).collect());
        }
    }

    /// The types of the matrices that stay as they are stored.
    pub fn kept_types(&self) -> Vec<MatrixType> {
        self.iter().flat_map(|segment| segment.all_kept().into_values()).collect()
    }

    /// Keeps the types that `other`, the segments of the same network, keep. Returns whether these are others than before.
    pub fn keep_as(&self, other: &[Segment]) -> bool {
        let mut is_other = false;
        for (segment, other) in self.iter().zip(other) {
            is_other |= segment.keep_as(other);
        }
        is_other
    }
}

impl Segment {
    /// Keeps the types of the same segment of another network. Returns whether these are others than before.
    pub(crate) fn keep_as(&self, other: &Self) -> bool {
        let kept = other.all_kept();
        let is_other = self.all_kept() != kept;
        self.set_kept(kept);
        is_other
    }

    /// The stored rows of parameter `index` in a slab of these types. `None` if it has the elements' type.
    pub(crate) fn rows(&self, index: usize, slab: SlabType) -> Option<StoredRows> {
        self.params().get(index)?.rows_of(slab.matrices.or_else(|| self.kept(index))?)
    }

    /// Whether the matrices of a stack have one type.
    pub(crate) fn is_uniform(&self, stack: &Stack) -> bool {
        let all = self.all_kept();
        (stack.first..stack.first + stack.count).all(|i| all.get(&i) == all.get(&stack.first))
    }
}

impl ParamSpec {
    /// Its rows as a matrix of this type. `None` if it is no matrix of a linear layer, or the type cannot store its rows.
    pub fn rows_of(&self, kind: MatrixType) -> Option<StoredRows> {
        match (self.packing, self.shape.as_slice()) {
            (Packing::Linear, &[n, k]) => kind.row_bytes(k).map(|row_bytes| StoredRows { kind, n, k, row_bytes }),
            _ => None,
        }
    }
}

/// The types of matrices that stay as they are stored, by the index of the parameter.
pub(crate) type Kept = HashMap<usize, MatrixType>;

#[cfg(test)]
mod tests;
