//! Buffers of tasks, kept by their threads: what a kernel writes before it reads needs neither clearing nor new memory.
#![allow(unsafe_code)]

use std::cell::RefCell;

use half::{bf16, f16};
use kiln_mempool::HostPool;

use crate::error::Result;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of words that comes from its thread and goes back to the thread that drops it.
pub(crate) struct Scratch(Vec<u32>);

impl Scratch {
    /// `len` values, whatever they hold: results of earlier uses, of other types too.
    pub(crate) fn get<T: Plain>(&mut self, len: usize) -> &mut [T] {
        let words = (len * size_of::<T>()).div_ceil(size_of::<u32>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut elements(&mut self.0)[..len]
    }

    /// As [`Scratch::get`], for buffers that are large enough to be refused. In a task that cannot stop half way nothing
    /// is: its buffers are a few hundred KiB.
    pub(crate) fn try_get<T: Plain>(&mut self, len: usize) -> Result<&mut [T]> {
        let words = (len * size_of::<T>()).div_ceil(size_of::<u32>());
        if self.0.len() < words {
            self.0 = Vec::new(); // what it held is nothing to anybody, and need not lie beside the new one
            self.0 = HostPool::vector(words)?;
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
        // A thread that ends may drop its tasks after what it kept: nothing is lost then but the buffer.
        let _ = KEPT.try_with(|kept| kept.try_borrow_mut().map(|mut kept| kept.push(words)));
    }
}

/// Words as values of a plain type: as many as they hold.
pub(crate) fn elements<T: Plain>(words: &mut [u32]) -> &mut [T] {
    let len = size_of_val(words) / size_of::<T>();
    // SAFETY: any bits are a value of a plain type, which has 2 or 4 bytes, so that a word's alignment is enough; the
    // words hold `len` of them.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Values of a plain type as the bytes that they are.
pub(crate) fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: every byte of a plain value is there, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Types of which any bits are a value.
///
/// # Safety
/// That is so, and the type has 2 or 4 bytes and no greater alignment.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for f32 {}
// SAFETY: numbers.
unsafe impl Plain for f16 {}
// SAFETY: numbers.
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
