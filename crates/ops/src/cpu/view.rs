//! A tensor on the CPU as a slice of f32.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, DType, Storage, StorageRef, Tensor};

use crate::error::Result;

/// The elements of a tensor in row-major order: borrowed where the tensor is contiguous f32, converted otherwise.
///
/// It holds the storage's read lock, so nothing may write to the same storage while it lives.
pub(crate) enum View<'a> {
    Borrowed { storage: StorageRef<'a>, range: Range<usize> },
    Converted(Vec<f32>),
}

impl<'a> View<'a> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        if let (Storage::Cpu(CpuStorage::F32(_)), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
            return Ok(Self::Borrowed { storage, range: start..end });
        }
        drop(storage);
        Ok(Self::Converted(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?))
    }

    /// The view of an operand that may be missing.
    pub(crate) fn optional(tensor: Option<&'a Tensor>) -> Result<Option<Self>> {
        tensor.map(Self::new).transpose()
    }
}

impl Deref for View<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Converted(values) => values,
            Self::Borrowed { storage, range } => match &**storage {
                Storage::Cpu(CpuStorage::F32(values)) => &values[range.clone()],
                // `new` borrows f32 storage alone, and the lock keeps it as it is.
                _ => &[],
            },
        }
    }
}
