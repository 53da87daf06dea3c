//! Buffers of tasks that their threads keep. A kernel writes them before it reads them, so they are never cleared.
#![allow(unsafe_code)]

use std::cell::RefCell;

use half::{bf16, f16};
use kiln_mempool::HostPool;

use crate::error::Result;

thread_local! {
    /// From the smallest to the largest. The largest is taken first: operators that ask for their largest buffer first
    /// share one large buffer, in whichever order they run.
    static KEPT: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of words from the current thread. It returns to the thread that drops it.
pub(crate) struct Scratch(Vec<u32>);

impl Scratch {
    /// `len` values with arbitrary contents: results of earlier uses, possibly of other types.
    pub(crate) fn get<T: Plain>(&mut self, len: usize) -> &mut [T] {
        let words = (len * size_of::<T>()).div_ceil(size_of::<u32>());
        if self.0.len() < words {
            self.0 = Vec::new(); // the old contents are not needed: free them before the new allocation
            self.0 = vec![0; words];
        }
        &mut elements(&mut self.0)[..len]
    }

    /// Like [`Scratch::get`], with an error where the pool has no memory. For large buffers outside of tasks: a task
    /// cannot stop half way, and its buffers have at most a few MiB.
    pub(crate) fn try_get<T: Plain>(&mut self, len: usize) -> Result<&mut [T]> {
        let words = (len * size_of::<T>()).div_ceil(size_of::<u32>());
        if self.0.len() < words {
            self.0 = Vec::new(); // the old contents are not needed: free them before the new allocation
            self.0 = HostPool::vector(words)?;
            self.0.resize(words, 0);
        }
        Ok(self.get(len))
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self(KEPT.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        // A thread that ends may drop its tasks after its thread-local buffers. Then only the buffer is lost.
        let _ = KEPT.try_with(|kept| {
            kept.try_borrow_mut().map(|mut kept| {
                let place = kept.partition_point(|other| other.len() < words.len());
                kept.insert(place, words);
            })
        });
    }
}

/// Words as values of a plain type, as many as they hold.
pub(crate) fn elements<T: Plain>(words: &mut [u32]) -> &mut [T] {
    let len = size_of_val(words) / size_of::<T>();
    // SAFETY: any bits are a valid value of a plain type, which has at most 4 bytes, so that the alignment of a word is
    // enough; the words hold `len` of them.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Values of a plain type as bytes.
pub(crate) fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a plain type has no padding, so every byte is initialized, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Types for which every bit pattern is a valid value.
///
/// # Safety
/// Every bit pattern is valid, and the type has 1, 2 or 4 bytes, no padding, and an alignment of at most 4.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: 4 bytes without padding, and every bit pattern is an f32.
unsafe impl Plain for u32 {}
// SAFETY: 1 byte, and every bit pattern is a u8.
unsafe impl Plain for u8 {}
// SAFETY: 4 bytes without padding, and every bit pattern is a u32.
unsafe impl Plain for f32 {}
// SAFETY: 2 bytes without padding, and every bit pattern is an f16.
unsafe impl Plain for f16 {}
// SAFETY: 2 bytes without padding, and every bit pattern is a bf16.
unsafe impl Plain for bf16 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_buffer_back() {
        let mut first = Scratch::default();
        first.get::<f32>(100).fill(1.0);
        let start = first.get::<f32>(100).as_ptr();
        drop(first);
        let mut second = Scratch::default();
        assert_eq!(second.get::<bf16>(200).as_ptr().cast(), start);
        assert_eq!(second.get::<bf16>(7).len(), 7);
    }
}
