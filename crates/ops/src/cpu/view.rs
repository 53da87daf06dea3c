//! A tensor on the CPU as a slice.

use std::ops::{Deref, Range};

use candle_core::{Storage, StorageRef, Tensor};

use super::Element;
use crate::error::Result;

/// The elements of a tensor in row-major order: borrowed where the tensor is contiguous and of type `T`, converted
/// otherwise.
///
/// It holds the storage's read lock, so nothing may write to the same storage while it lives.
pub(crate) enum View<'a, T = f32> {
    Borrowed { storage: StorageRef<'a>, range: Range<usize> },
    Converted(Vec<T>),
}

impl<'a, T: Element> View<'a, T> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        if let (Storage::Cpu(cpu), Some((start, end))) = (&*storage, layout.contiguous_offsets())
            && T::slice(cpu).is_some()
        {
            return Ok(Self::Borrowed { storage, range: start..end });
        }
        drop(storage);
        Ok(Self::Converted(tensor.to_dtype(T::DTYPE)?.flatten_all()?.to_vec1()?))
    }

    /// The view of an operand that may be missing.
    pub(crate) fn optional(tensor: Option<&'a Tensor>) -> Result<Option<Self>> {
        tensor.map(Self::new).transpose()
    }
}

impl<T: Element> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Converted(values) => values,
            Self::Borrowed { storage, range } => match &**storage {
                Storage::Cpu(cpu) => T::slice(cpu).map_or(&[], |values| &values[range.clone()]),
                // `new` borrows from the processor's memory alone, and the lock keeps it there.
                _ => &[],
            },
        }
    }
}
