//! The tiles of products with cooperative matrices.

use crate::adapter::Matrices;
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Workgroups that keep a large GPU busy: the streaming multiprocessors of an H200. Products with fewer tiles divide k.
pub(super) const WORKGROUPS: usize = 132;
/// Elements of k below which a part of it is not worth its sums.
const LEAST_PART: usize = 256;

/// The part of the result that a workgroup computes, and a subgroup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) columns: usize,
    sub_rows: usize,
    sub_columns: usize,
    /// Elements of k that a workgroup takes at a time, and those that a thread reads at once.
    depth: usize,
    chunk: usize,
    /// Its speed in parts of that of the fastest tiles, in large products on an H200.
    rate: f64,
}

/// The fastest tiles first; the last ones are for workgroups with little memory.
const ALL: [Tiles; 3] = [
    Tiles { rows: 128, columns: 128, sub_rows: 64, sub_columns: 32, depth: 64, chunk: 8, rate: 1.0 },
    // 1280 columns are 8 of them, so that 2048 rows are 128 tiles instead of 160.
    Tiles { rows: 128, columns: 160, sub_rows: 32, sub_columns: 80, depth: 32, chunk: 4, rate: 0.72 },
    Tiles { rows: 64, columns: 64, sub_rows: 32, sub_columns: 32, depth: 64, chunk: 8, rate: 0.6 },
];

/// The parts into which k is divided if the result has so many tiles.
pub(super) fn parts(tiles: usize, k: usize) -> usize {
    ((WORKGROUPS + tiles / 2) / tiles.max(1)).min(k / LEAST_PART).max(1)
}

/// A measure of the time of a result `(m, n)` in tiles of some rows and columns, which have a rate.
pub(super) fn seconds([m, n]: [usize; 2], [rows, columns]: [usize; 2], rate: f64) -> f64 {
    let count = m.div_ceil(rows) * n.div_ceil(columns);
    // Parts of k fill the GPU if there are few tiles.
    let parts = parts(count, usize::MAX);
    let waves = (count * parts).div_ceil(WORKGROUPS) as f64 / parts as f64;
    waves * (rows * columns) as f64 / rate
}

impl Tiles {
    /// The tiles for a result `(m, n)`; `None` if the GPU has no matrices, or no memory for any.
    pub(super) fn of(gpu: &Gpu, m: usize, n: usize) -> Option<(Self, Matrices)> {
        let matrices = gpu.matrices()?;
        let fits = |tiles: &Self| {
            let threads = tiles.subgroups() * matrices.lanes;
            tiles.memory(matrices) <= gpu.workgroup_memory() && threads <= gpu.workgroup_threads()
        };
        let seconds = |tiles: &Self| seconds([m, n], [tiles.rows, tiles.columns], tiles.rate);
        let found = Self::all(matrices).filter(fits);
        Some((found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)))?, matrices))
    }

    /// All tiles whose threads divide their rows.
    pub(super) fn all(matrices: Matrices) -> impl Iterator<Item = Self> {
        ALL.into_iter().filter(move |tiles| tiles.is_for(matrices))
    }

    fn subgroups(&self) -> usize {
        self.rows / self.sub_rows * (self.columns / self.sub_columns)
    }

    /// Rows of a tile that a workgroup reads at once.
    fn load_rows(&self, matrices: Matrices) -> usize {
        self.subgroups() * matrices.lanes / (self.depth / self.chunk)
    }

    /// Whether threads read whole tiles.
    fn is_for(&self, matrices: Matrices) -> bool {
        let rows = self.load_rows(matrices);
        rows > 0 && self.rows.is_multiple_of(rows) && self.columns.is_multiple_of(rows)
    }

    /// Bytes of workgroup memory: a tile of each operand in f16 with its padding, and a matrix of sums of each subgroup.
    fn memory(&self, matrices: Matrices) -> usize {
        (self.rows + self.columns) * (self.depth + 8) * 2 + self.subgroups() * matrices.side.pow(2) * 4
    }

    /// The kernel with the constants of these tiles, for products of `k`.
    pub(super) fn kernel(&self, matrices: Matrices, k: usize) -> Kernel {
        let Matrices { side, lanes } = matrices;
        let load_rows = self.load_rows(matrices);
        Kernel::new("product_matrix", include_str!("../kernels/product_matrix.wgsl"))
            .paste("/*starts*/", include_str!("../kernels/product_starts.wgsl"))
            .paste("/*fetch*/", include_str!("../kernels/product_fetch.wgsl"))
            .with_matrices(side)
            .with("LANES", lanes)
            .with("TILE_ROWS", self.rows)
            .with("TILE_COLUMNS", self.columns)
            .with("SUB_ROWS", self.sub_rows)
            .with("SUB_COLUMNS", self.sub_columns)
            .with("DEPTH", self.depth)
            .with("CHUNK", self.chunk)
            .with("VECTORS", self.chunk / 4)
            .with("ROWS_OF_MATRICES", self.sub_rows / side)
            .with("COLUMNS_OF_MATRICES", self.sub_columns / side)
            .with("DEPTH_OF_MATRICES", self.depth / side)
            .with("LOADS_A", self.rows / load_rows)
            .with("LOADS_W", self.columns / load_rows)
            .when("EXACT", k.is_multiple_of(self.depth))
    }
}
