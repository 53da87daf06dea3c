//! Memory of a group normalization besides operands and result.

use super::cpu;
use crate::workspace::{Target, Workspace};

/// Elements of a group up to which one block of a GPU normalizes it in one launch. SD's feature maps of 64x64 have
/// more.
pub(super) const WHOLE: usize = 32 << 10;
/// Elements of an image whose moments one block of a GPU sums: 32 KiB of 16-bit ones.
pub(super) const PART: usize = 16 << 10;
/// Parts of an image at most.
pub(super) const MAX_PARTS: usize = 128;

/// Memory of [`crate::group_norm`] besides operands and result, for `b` images of `pixels` pixels with `c` channels:
/// the sums of the parts, in f32.
pub fn group_norm_workspace(target: Target, b: usize, pixels: usize, c: usize, num_groups: usize) -> Workspace {
    let (sums, group) = (2 * size_of::<f32>(), pixels * c / num_groups.max(1));
    Workspace::call(match target {
        Target::Cpu { .. } => pixels.div_ceil(cpu::BLOCK) * c * sums, // one image at a time
        Target::Gpu if group <= WHOLE => 0,
        Target::Gpu => b * num_groups * (pixels * c).div_ceil(PART).min(MAX_PARTS) * sums,
    })
}
