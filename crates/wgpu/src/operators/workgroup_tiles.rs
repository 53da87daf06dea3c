//! The tiles of products with cooperative matrices of a whole workgroup.

use super::tiles::seconds;
use crate::pipelines::Kernel;

/// The part of the result that a workgroup computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkgroupTiles {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Its speed in parts of that of the fastest tiles, in large products on an H200.
    rate: f64,
}

/// Tiles whose rows and columns are multiples of 32. With padding, operands take less than the 40 KiB of workgroup memory that drivers
/// leave to a kernel with such matrices.
const ALL: [WorkgroupTiles; 3] = [
    // U-Nets have multiples of 160 columns.
    WorkgroupTiles { rows: 96, columns: 160, rate: 1.0 },
    WorkgroupTiles { rows: 128, columns: 128, rate: 0.97 },
    WorkgroupTiles { rows: 64, columns: 160, rate: 0.78 },
];
/// Elements of k that a workgroup takes at a time, and its threads.
const DEPTH: usize = 64;
const THREADS: usize = 128;

impl WorkgroupTiles {
    /// The tiles for a result `(m, n)`.
    pub(super) fn of(m: usize, n: usize) -> Self {
        let seconds = |tiles: &Self| seconds([m, n], [tiles.rows, tiles.columns], tiles.rate);
        let [first, others @ ..] = ALL;
        others.into_iter().fold(first, |best, tiles| if seconds(&tiles) < seconds(&best) { tiles } else { best })
    }

    /// The kernel with the constants of these tiles.
    pub(super) fn kernel(&self) -> Kernel {
        Kernel::compiled("product_workgroup", include_bytes!("../kernels/workgroup/product.spv"))
            .with("THREADS", THREADS)
            .with("TILE_ROWS", self.rows)
            .with("TILE_COLUMNS", self.columns)
            .with("DEPTH", DEPTH)
    }
}

/// A kernel with all of its constants.
#[cfg(test)]
pub(super) fn kernel() -> Kernel {
    let names = ["CONVOLUTION", "HAS_BIAS", "HAS_IMAGE_BIAS", "HAS_RESIDUAL", "WIDE"];
    names.into_iter().fold(ALL[0].kernel(), |kernel, name| kernel.when(name, false)).with("PARTS", 1)
}
