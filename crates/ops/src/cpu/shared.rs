//! A result that several tasks write, each its own rows and columns.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// A matrix in memory, parts of whose rows are written by different tasks.
pub(crate) struct Shared<'a, T> {
    values: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
    /// Which values were handed out. This crate's tests check with it that the callers of `part` keep its contract.
    #[cfg(test)]
    taken: std::sync::Mutex<Vec<bool>>,
}

// SAFETY: the pointer comes from an exclusive borrow that lives as long as this value, and every part of it is written
// by one task alone (the contract of `part`).
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(values: &'a mut [T]) -> Self {
        Self {
            values: values.as_mut_ptr(),
            len: values.len(),
            lifetime: PhantomData,
            #[cfg(test)]
            taken: std::sync::Mutex::new(vec![false; values.len()]),
        }
    }

    /// A part of the memory. Panics if it is out of bounds.
    ///
    /// # Safety
    /// No two parts that live at the same time overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        #[cfg(test)]
        for taken in &mut self.taken.lock().unwrap()[range.clone()] {
            assert!(!std::mem::replace(taken, true), "{range:?}: a value is handed out twice");
        }
        // SAFETY: the range is inside the borrowed memory, and by the contract no other live part overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(range.start), range.len()) }
    }
}
