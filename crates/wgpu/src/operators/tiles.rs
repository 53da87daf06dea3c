//! The tiles of products with cooperative matrices.

use crate::adapter::Matrices;
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Elements of k that a workgroup takes at a time.
const DEPTH: usize = 64;
/// Elements that a thread reads at once.
const CHUNK: usize = 8;
/// Workgroups that keep a large GPU busy. Products with fewer tiles divide k.
const WORKGROUPS: usize = 128;
/// Steps of [`DEPTH`] below which a part of k is not worth its sums.
const LEAST_STEPS: usize = 4;

/// The part of the result that a workgroup computes, and a subgroup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) columns: usize,
    sub_rows: usize,
    sub_columns: usize,
    matrices: Matrices,
}

impl Tiles {
    /// The largest tiles for which a workgroup has memory; `None` if the GPU has no matrices.
    pub(super) fn of(gpu: &Gpu) -> Option<Self> {
        let matrices = gpu.matrices()?;
        let large = Self { rows: 128, columns: 128, sub_rows: 64, sub_columns: 32, matrices };
        let small = Self { rows: 64, columns: 64, sub_rows: 32, sub_columns: 32, matrices };
        [large, small].into_iter().find(|tiles| tiles.memory() <= gpu.workgroup_memory())
    }

    fn subgroups(&self) -> usize {
        self.rows / self.sub_rows * (self.columns / self.sub_columns)
    }

    /// Bytes of workgroup memory: a tile of each operand in f16 with its padding, and a matrix of sums of each subgroup.
    fn memory(&self) -> usize {
        (self.rows + self.columns) * (DEPTH + CHUNK) * 2 + self.subgroups() * self.matrices.side.pow(2) * 4
    }

    /// The parts into which k is divided.
    pub(super) fn parts(&self, m: usize, n: usize, k: usize) -> usize {
        let tiles = m.div_ceil(self.rows) * n.div_ceil(self.columns);
        let most = k.div_ceil(DEPTH) / LEAST_STEPS;
        ((WORKGROUPS + tiles / 2) / tiles.max(1)).min(most).max(1)
    }

    /// The kernel with the constants of these tiles.
    pub(super) fn kernel(&self) -> Kernel {
        let Matrices { side, lanes } = self.matrices;
        let read_rows = self.subgroups() * lanes / (DEPTH / CHUNK);
        Kernel::new("product_matrix", include_str!("../kernels/product_matrix.wgsl"))
            .with_matrices(side)
            .with("LANES", lanes)
            .with("TILE_ROWS", self.rows)
            .with("TILE_COLUMNS", self.columns)
            .with("SUB_ROWS", self.sub_rows)
            .with("SUB_COLUMNS", self.sub_columns)
            .with("DEPTH", DEPTH)
            .with("ROWS_OF_MATRICES", self.sub_rows / side)
            .with("COLUMNS_OF_MATRICES", self.sub_columns / side)
            .with("DEPTH_OF_MATRICES", DEPTH / side)
            .with("LOADS_A", self.rows / read_rows)
            .with("LOADS_W", self.columns / read_rows)
    }
}
