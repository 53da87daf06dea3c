//! A tensor on the CPU as a slice.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Storage, StorageRef, Tensor};

use super::Element;
use super::scratch::bytes;
use crate::error::{Error, Result};

/// The elements of a tensor in row-major order: borrowed where the tensor is contiguous and of type `T`, converted
/// otherwise.
///
/// It holds a read lock on the storage, so nothing may write to the same storage while it lives.
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

    /// The view of an optional operand.
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
                // `new` borrows CPU memory only, and the lock keeps it there.
                _ => &[],
            },
        }
    }
}

/// The elements of a tensor in row-major order, in f32: in place if the tensor is contiguous, in f32 and on the CPU, else copies. While
/// they are borrowed, nothing may write to the tensor.
///
/// # Errors
/// Errors of the copy.
pub fn f32_values(tensor: &Tensor) -> Result<impl Deref<Target = [f32]>> {
    View::<f32>::new(tensor)
}

/// The memory of a contiguous CPU tensor as bytes, whatever its type. Nothing is converted.
///
/// It holds a read lock on the storage, as [`View`] does.
pub(crate) struct Bytes<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let size = tensor.dtype().size_in_bytes();
        match layout.contiguous_offsets() {
            Some((start, end)) => Ok(Self { storage, range: start * size..end * size }),
            None => Err(Error::Out { op: "linear", problem: "has a matrix that is not contiguous" }),
        }
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => bytes(values),
            Storage::Cpu(CpuStorage::F16(values)) => bytes(values),
            Storage::Cpu(CpuStorage::BF16(values)) => bytes(values),
            _ => &[],
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}
