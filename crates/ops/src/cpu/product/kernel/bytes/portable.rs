//! The portable kernel: arrays as wide as a panel, which the compiler vectorizes for its target.

use super::super::{PANEL, STRIDE};
use super::BYTES;

/// See [`super::super::Run`].
///
/// # Safety
/// Asserted by [`super::ByteKernel::run`].
pub(super) unsafe fn run<const ROWS: usize, const HALVES: usize>(
    words: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    for row in 0..ROWS {
        let mut sums = [0i32; PANEL];
        // SAFETY: by the contract each row of `out` has PANEL values, each row of `a` has `words` words, and the panel
        // as many rows of PANEL words. Any bits are an i32.
        unsafe {
            let out = out.add(row * stride).cast::<[i32; PANEL]>();
            if !first {
                sums = *out;
            }
            for p in 0..words {
                let a = (*a.add(row * STRIDE + p)).to_le_bytes().map(i32::from);
                let b = &*b.add(p * PANEL * BYTES).cast::<[[i8; BYTES]; PANEL]>();
                for (sum, b) in sums[..HALVES * PANEL / 2].iter_mut().zip(b) {
                    for (a, b) in a.iter().zip(b) {
                        *sum = sum.wrapping_add(a * i32::from(*b));
                    }
                }
            }
            *out = sums;
        }
    }
}
