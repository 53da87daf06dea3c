//! The tiles of products without cooperative matrices, whose operands are read by four elements.

use super::tiles::WORKGROUPS;
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// The part of the result that a workgroup of 16 x 16 threads computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegisterTiles {
    /// Rows and columns of a thread.
    rows: usize,
    columns: usize,
    /// Elements of k that a workgroup takes at a time.
    depth: usize,
}

/// Threads of a workgroup in both directions.
const SIDE: usize = 16;
/// The faster tiles of large products. On an H200 without matrices they reached 33 TFLOP/s in a product of 4096 x 4096 x 4096, the
/// others 27, and product.wgsl 22.
const LARGE: RegisterTiles = RegisterTiles { rows: 8, columns: 8, depth: 16 };
/// For GPUs that share memory, too: Intel's have half of the registers.
const SMALL: RegisterTiles = RegisterTiles { rows: 4, columns: 4, depth: 32 };

impl RegisterTiles {
    /// The tiles for a result `(m, n)`; `None` if a workgroup has no memory for any.
    pub(super) fn of(gpu: &Gpu, m: usize, n: usize) -> Option<Self> {
        let [rows, columns] = LARGE.size();
        let has_many = m.div_ceil(rows) * n.div_ceil(columns) >= WORKGROUPS;
        let tiles = if has_many && gpu.is_discrete() { [LARGE, SMALL] } else { [SMALL; 2] };
        tiles.into_iter().find(|tiles| tiles.memory() <= gpu.workgroup_memory())
    }

    /// Rows and columns of a workgroup.
    pub(super) fn size(&self) -> [usize; 2] {
        [self.rows * SIDE, self.columns * SIDE]
    }

    /// Bytes of workgroup memory: a tile of each operand in f32, with its padding.
    fn memory(&self) -> usize {
        self.size().iter().sum::<usize>() * (self.depth + 4) * size_of::<f32>()
    }

    /// The kernel with the constants of these tiles, for products of `k`.
    pub(super) fn kernel(&self, k: usize) -> Kernel {
        let [rows, columns] = self.size();
        let vectors = self.depth / 4;
        let load_rows = SIDE * SIDE / vectors;
        Kernel::new("product_registers", include_str!("../kernels/product_registers.wgsl"))
            .paste("/*starts*/", include_str!("../kernels/product_starts.wgsl"))
            .paste("/*fetch*/", include_str!("../kernels/product_fetch.wgsl"))
            .with("TILE_ROWS", rows)
            .with("TILE_COLUMNS", columns)
            .with("THREAD_ROWS", self.rows)
            .with("THREAD_COLUMNS", self.columns)
            .with("SUMS", self.rows * self.columns)
            .with("DEPTH", self.depth)
            .with("DEPTH_VECTORS", vectors)
            .with("VECTORS", 1)
            .with("LOADS_A", rows / load_rows)
            .with("LOADS_W", columns / load_rows)
            .when("EXACT", k.is_multiple_of(self.depth))
    }
}

/// The kernels with all tiles.
#[cfg(test)]
pub(super) fn kernels() -> Vec<Kernel> {
    // Of an exact and another depth.
    vec![LARGE.kernel(320), SMALL.kernel(36)]
}
