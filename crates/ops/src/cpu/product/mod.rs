//! The matrix product under convolutions, linear layers and attention.
//!
//! `out = a b` with `a` `(m, k)` gathered row by row from activations and `b` `(k, n)` packed into panels of [`PANEL`]
//! columns. A task computes a tile of the result: it gathers a block of `a` into a buffer that stays in the L2 cache,
//! multiplies it with the panels of its columns, block of `k` by block of `k`, and passes the finished tile to the
//! caller's epilogue.
//!
//! The order in which an element is summed depends on the kernel and on `k` alone: blocks of [`K_BLOCK`] or fewer words in
//! order, and in a block the products in order, or step by step ([`kernel`]). So neither the number of threads nor the
//! other rows of a product change a bit.

pub(crate) mod bytes;
mod kernel;
pub(crate) mod panels;
pub(crate) mod peak;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::{Element, Scratch};
use crate::stop;
pub(crate) use kernel::{Kernel, MOST_ROWS, Out};
pub(crate) use panels::{PANEL, Panels, pack, pack_stored, packed_len};

/// The most words of `k` in a block: 14 rows of it take 28 KiB, more than half of an L1 cache.
const K_BLOCK: usize = 512;
/// Elements between two rows of the gathered block: no multiple of a page, so that rows use different cache sets.
pub(crate) const STRIDE: usize = K_BLOCK + 16;
/// Values between the rows of a tile beyond its columns: with them a row is an odd number of cache lines, so that the rows of
/// a kernel's call use different cache sets.
pub(crate) const TILE_GAP: usize = PANEL / 2;

/// The operands of a product.
pub(crate) struct Product<'a, T> {
    /// Rows of the result.
    pub(crate) m: usize,
    /// The right operand, which holds `k` and `n`.
    pub(crate) b: Panels<'a, T>,
}

/// A finished tile of a result.
pub(crate) struct Tile<'a> {
    /// Its rows.
    pub(crate) rows: Range<usize>,
    /// Its columns.
    pub(crate) columns: Range<usize>,
    values: &'a [f32],
    stride: usize,
}

impl Tile<'_> {
    /// The values of row `row` of the result, in this tile's columns.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let start = (row - self.rows.start) * self.stride;
        &self.values[start..start + self.columns.len()]
    }
}

impl<T: Element> Product<'_, T> {
    /// Computes all tiles on all threads. `gather(row, k, out)` writes elements `k..k + out.len()` of row `row` of `a`.
    /// `finish` is called once for every tile.
    pub(crate) fn run(&self, gather: impl Fn(usize, usize, &mut [T]) + Sync, finish: impl Fn(Tile<'_>) + Sync) {
        self.run_by(Kernel::current::<T>, gather, finish);
    }

    /// Multiplies by a kernel for panels of `T`.
    fn run_by(
        &self,
        kernel: impl Fn() -> Kernel + Sync,
        gather: impl Fn(usize, usize, &mut [T]) + Sync,
        finish: impl Fn(Tile<'_>) + Sync,
    ) {
        let (m, n) = (self.m, self.b.n());
        let sizes = kernel();
        let (m_block, n_block) = blocks(m, n, sizes.rows(), sizes.task(), rayon::current_num_threads());
        let (rows, columns) = (m.div_ceil(m_block), n.div_ceil(n_block));
        let multiplier = || Multiplier::new(kernel());
        let stops = stop::asked();
        (0..rows * columns).into_par_iter().for_each_init(multiplier, |multiplier, task| {
            if stops() {
                return;
            }
            // Tasks one after another share the larger operand's block, which then comes from a cache.
            let (row, column) = if n > m { (task % rows, task / rows) } else { (task / columns, task % columns) };
            let (row, column) = (row * m_block, column * n_block);
            let (rows, columns) = (row..(row + m_block).min(m), column..(column + n_block).min(n));
            finish(multiplier.multiply(self.b, rows, columns, &gather));
        });
    }
}

/// The kernel and the buffers of a task, kept between its tiles.
struct Multiplier<T> {
    kernel: Kernel,
    /// The gathered elements.
    stored: Vec<T>,
    /// The operand in the kernel's format: f32, or pairs of bf16.
    a: Scratch,
    tile: Scratch,
}

impl<T: Element> Multiplier<T> {
    fn new(kernel: Kernel) -> Self {
        Self { kernel, stored: Vec::new(), a: Scratch::default(), tile: Scratch::default() }
    }

    /// Computes the tile of `rows` and `columns` on this thread. `columns` start at a panel.
    fn multiply(
        &mut self,
        b: Panels<'_, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        gather: &impl Fn(usize, usize, &mut [T]),
    ) -> Tile<'_> {
        let k = b.k();
        let stride = columns.len().next_multiple_of(PANEL) + TILE_GAP;
        let panels = columns.start / PANEL..columns.end.div_ceil(PANEL);
        let tile: &mut [f32] = self.tile.get(rows.len() * stride);
        if k == 0 {
            tile.fill(0.0);
        }
        let gathered: &mut [u32] = self.a.get(rows.len() * STRIDE);
        let (block, most_rows) = (self.kernel.k_block(), self.kernel.rows());
        for start in (0..k).step_by(block) {
            let depth = block.min(k - start);
            for (row, a) in rows.clone().zip(gathered.chunks_exact_mut(STRIDE)) {
                self.kernel.fill(depth, &mut self.stored, a, |out| gather(row, start, out));
            }
            for (i, a) in gathered.chunks(most_rows * STRIDE).enumerate() {
                let count = a.len() / STRIDE;
                for (j, panel) in panels.clone().enumerate() {
                    let values = &mut tile[i * most_rows * stride + j * PANEL..];
                    let out = Out { values, stride, first: start == 0, columns: columns.end - panel * PANEL };
                    self.kernel.run(count, a, b.block(panel, start, depth), depth, out);
                }
            }
        }
        Tile { rows, columns, values: tile, stride }
    }
}

/// Rows and columns of a task: whole calls of `call` rows and whole panels, small enough that every thread gets several. The
/// kernel's own task is the largest.
fn blocks(m: usize, n: usize, call: usize, task: (usize, usize), threads: usize) -> (usize, usize) {
    let (mut rows, mut columns) = task;
    let enough = if threads == 1 { 1 } else { 4 * threads };
    while m.div_ceil(rows) * n.div_ceil(columns) < enough && (rows > call || columns > PANEL) {
        // Narrower tiles gather the same rows more often, lower ones read the same weights more often: keep both even.
        if rows > call && (rows >= columns || columns == PANEL) && m > call {
            rows = (rows / 2).next_multiple_of(call).min(rows - call).max(call);
        } else if columns > PANEL {
            columns = (columns / 2).next_multiple_of(PANEL);
        } else {
            break;
        }
    }
    (rows, columns)
}
