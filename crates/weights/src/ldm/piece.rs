//! Pieces of stored tensors: the part of a stored tensor that a declared one corresponds to, in both directions.

use std::borrow::Cow;
use std::ops::Range;

use super::view::transpose;
use crate::source::ParamInfo;
use crate::stored_type::StoredType;

/// The piece of a stored tensor that a declared tensor corresponds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// The whole tensor.
    Whole,
    /// Consecutive rows of a fused projection. All rows are `of` equal parts; the piece is the `count` parts from part
    /// `first` on.
    Rows {
        /// The first part.
        first: usize,
        /// The number of parts.
        count: usize,
        /// The number of parts of the stored tensor.
        of: usize,
    },
    /// The whole tensor with the two halves of its rows exchanged: a modulation whose shift and scale have the other order.
    Exchanged,
    /// The whole tensor, transposed.
    Transposed,
    /// The whole tensor: a matrix `(n, k)` that is stored as a 1x1 convolution `(n, k, 1, 1)`.
    Pointwise,
}

impl Piece {
    /// The first, second or third of three equal blocks of rows: a fused projection of queries, keys and values.
    pub const fn third(i: usize) -> Self {
        Self::Rows { first: i, count: 1, of: 3 }
    }

    /// Whether the piece is a part of the stored rows.
    pub fn is_rows(self) -> bool {
        matches!(self, Self::Rows { .. })
    }

    /// The place of the piece among all pieces of its stored tensor.
    pub fn order(self) -> usize {
        if let Self::Rows { first, .. } = self { first } else { 0 }
    }

    /// The rows of a stored tensor of `rows` rows. `None` if it has no such piece.
    pub(crate) fn rows(self, rows: usize) -> Option<Range<usize>> {
        match self {
            Self::Rows { first, count, of } if of > 0 && rows.is_multiple_of(of) => {
                let unit = rows / of;
                Some(unit.checked_mul(first)?..unit.checked_mul(first + count)?).filter(|range| range.end <= rows)
            }
            Self::Rows { .. } => None,
            _ => Some(0..rows),
        }
    }

    /// The shape and type of the piece. `None` if the stored tensor has no such piece.
    pub(crate) fn info(self, mut stored: ParamInfo) -> Option<ParamInfo> {
        match self {
            Self::Whole => {}
            Self::Rows { .. } => {
                let rows = self.rows(*stored.shape.first()?)?;
                return stored.rows(&rows).map(|(info, _)| info);
            }
            Self::Exchanged => {
                let rows = *stored.shape.first().filter(|rows| rows.is_multiple_of(2))?;
                stored.rows(&(0..rows / 2))?;
            }
            Self::Transposed => {
                let [rows, columns] = <[usize; 2]>::try_from(stored.shape).ok()?;
                stored.shape = vec![columns, rows];
                if !matches!(stored.dtype, StoredType::Plain(_)) {
                    stored.dtype = safetensors::Dtype::F32.into(); // a column has no blocks and no factor
                }
            }
            Self::Pointwise => {
                if let [rows, columns, 1, 1] = stored.shape[..] {
                    stored.shape = vec![rows, columns];
                }
            }
        }
        Some(stored)
    }

    /// The shape of the stored tensor with a piece of the shape `declared`.
    pub fn stored_shape(self, declared: &[usize]) -> Vec<usize> {
        let mut shape = declared.to_vec();
        match (self, shape.as_mut_slice()) {
            (Self::Rows { count, of, .. }, [rows, ..]) => *rows = *rows / count.max(1) * of,
            (Self::Transposed, [rows, columns]) => std::mem::swap(rows, columns),
            (Self::Pointwise, [_, _]) => shape.extend([1, 1]),
            _ => {}
        }
        shape
    }

    /// The bytes of the stored tensor for those of the declared one, of the shape `declared`. For rows these are the
    /// bytes of the piece alone; the pieces of a tensor follow each other in [`Self::order`].
    pub fn stored_bytes<'a>(self, bytes: Cow<'a, [u8]>, declared: &[usize]) -> Cow<'a, [u8]> {
        match (self, declared) {
            (Self::Exchanged, _) => Cow::Owned(exchanged(&bytes)),
            (Self::Transposed, &[rows, columns]) => Cow::Owned(transpose(&bytes, rows, columns)),
            _ => bytes,
        }
    }
}

/// The bytes of a tensor with the halves of its rows exchanged.
pub(super) fn exchanged(bytes: &[u8]) -> Vec<u8> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [second, first].concat()
}
