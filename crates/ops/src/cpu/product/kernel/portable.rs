//! The portable kernel: arrays as wide as a panel, which the compiler vectorizes for its target.

use super::{Element, PANEL, STRIDE};

/// See [`super::Run`]; the elements of the panel are `T`.
///
/// # Safety
/// Asserted by [`super::Kernel::run`].
pub(super) unsafe fn run<T: Element, const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    let b: *const T = b.cast();
    for row in 0..ROWS {
        let mut sums = [0f32; PANEL];
        // SAFETY: by the contract each row of `out` has PANEL values, each row of `a` `depth` words, and the panel
        // `depth` rows, an even number where the type is paired.
        unsafe {
            let out = out.add(row * stride);
            if !first {
                sums = *out.cast::<[f32; PANEL]>();
            }
            for p in 0..depth {
                let a = f32::from_bits(*a.add(row * STRIDE + p));
                for (column, sum) in sums[..HALVES * PANEL / 2].iter_mut().enumerate() {
                    let at = if T::PAIRED { p / 2 * 2 * PANEL + column * 2 + p % 2 } else { p * PANEL + column };
                    *sum += a * (*b.add(at)).to_f32();
                }
            }
            *out.cast::<[f32; PANEL]>() = sums;
        }
    }
}
