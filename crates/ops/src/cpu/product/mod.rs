//! The matrix product under convolutions, linear layers and attention.
//!
//! `out = a b` with `a` `(m, k)` gathered row by row from activations and `b` `(k, n)` packed into panels of
//! [`PANEL`] columns. A task computes a tile of the result: it gathers a block of `a` into a buffer that stays in the
//! second-level cache, multiplies it with the panels of its columns, block of `k` by block of `k`, and hands the
//! finished tile to the caller's epilogue.
//!
//! The order in which an element is summed depends on `k` alone: blocks of [`K_BLOCK`] one after another, in each the
//! products one after another. So neither the number of threads nor the other rows of a product change a bit.

mod kernel;
pub(crate) mod panels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;

use super::isa::Isa;
pub(crate) use kernel::Kernel;
use kernel::ROWS;
pub(crate) use panels::{PANEL, Panels};

/// Elements of `k` in a block: `ROWS` rows of it take 28 KiB, more than half of a first-level cache.
const K_BLOCK: usize = 512;
/// Elements between two rows of the gathered block: no multiple of a page, so that rows spread over the cache's sets.
const STRIDE: usize = K_BLOCK + 16;
/// Rows of a task: with `K_BLOCK` 231 KiB in the second-level cache.
const M_BLOCK: usize = 8 * ROWS;
/// Columns of a task: their panels' block takes 512 KiB.
const N_BLOCK: usize = 256;

/// An element type of activations and weights.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// The panels' order: whether two neighbours in `k` lie together, as dot products of pairs want them.
    const PAIRED: bool;
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
    /// The kernel for panels of this type.
    fn kernel(isa: Isa) -> Kernel;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const PAIRED: bool = false;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }

    fn kernel(isa: Isa) -> Kernel {
        Kernel::f32(isa)
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;
    const PAIRED: bool = true;

    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }

    fn kernel(isa: Isa) -> Kernel {
        Kernel::bf16(isa)
    }
}

impl Element for f16 {
    const ZERO: Self = f16::ZERO;
    const PAIRED: bool = false;

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    fn kernel(isa: Isa) -> Kernel {
        Kernel::f16(isa)
    }
}

/// What is multiplied: shapes, and how rows of `a` are had.
pub(crate) struct Product<'a, T> {
    /// Rows of the result.
    pub(crate) m: usize,
    /// The right operand; it knows `k` and `n`.
    pub(crate) b: Panels<'a, T>,
}

/// A finished tile of the result.
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

/// A task's buffers, kept between its tasks.
struct Scratch<T> {
    /// Gathered elements as they are stored.
    stored: Vec<T>,
    /// The same as the kernel wants them: f32, or pairs of bf16.
    a: Vec<u32>,
    tile: Vec<f32>,
}

impl<T: Element> Product<'_, T> {
    /// Computes all tiles on all threads. `gather(row, k, out)` writes elements `k..k + out.len()` of row `row` of `a`;
    /// `finish` gets every tile once.
    pub(crate) fn run(&self, gather: impl Fn(usize, usize, &mut [T]) + Sync, finish: impl Fn(Tile<'_>) + Sync) {
        let (m, n) = (self.m, self.b.n());
        let (m_block, n_block) = blocks(m, n, rayon::current_num_threads());
        let columns = n.div_ceil(n_block);
        let kernel = T::kernel(Isa::current());
        (0..m.div_ceil(m_block) * columns).into_par_iter().for_each_init(
            || Scratch { stored: Vec::new(), a: Vec::new(), tile: Vec::new() },
            |scratch, task| {
                let (row, column) = (task / columns * m_block, task % columns * n_block);
                let (rows, columns) = (row..(row + m_block).min(m), column..(column + n_block).min(n));
                self.tile(&kernel, rows, columns, &gather, scratch, &finish);
            },
        );
    }

    fn tile(
        &self,
        kernel: &Kernel,
        rows: Range<usize>,
        columns: Range<usize>,
        gather: &impl Fn(usize, usize, &mut [T]),
        scratch: &mut Scratch<T>,
        finish: &impl Fn(Tile<'_>),
    ) {
        let k = self.b.k();
        let stride = columns.len().next_multiple_of(PANEL);
        let panels = columns.start / PANEL..columns.end.div_ceil(PANEL);
        scratch.tile.resize(rows.len() * stride, 0.0);
        if k == 0 {
            scratch.tile.fill(0.0);
        }
        scratch.a.resize(rows.len() * STRIDE, 0);
        // A block of pairs holds twice as many elements in the same bytes.
        let block = if kernel.takes_pairs() { 2 * K_BLOCK } else { K_BLOCK };
        for start in (0..k).step_by(block) {
            let depth = block.min(k - start);
            for (row, a) in rows.clone().zip(scratch.a.chunks_exact_mut(STRIDE)) {
                scratch.stored.clear();
                scratch.stored.resize(depth.next_multiple_of(2), T::ZERO);
                gather(row, start, &mut scratch.stored[..depth]);
                kernel.load_row(&scratch.stored, a);
            }
            for (i, a) in scratch.a.chunks(ROWS * STRIDE).enumerate() {
                let count = a.len() / STRIDE;
                for (j, panel) in panels.clone().enumerate() {
                    let b = self.b.block(panel, start, depth);
                    let out = &mut scratch.tile[i * ROWS * stride + j * PANEL..];
                    kernel.run(count, a, b, depth, out, stride, start == 0);
                }
            }
        }
        finish(Tile { rows, columns, values: &scratch.tile, stride });
    }
}

/// Rows and columns of a task: small enough that every thread gets several.
fn blocks(m: usize, n: usize, threads: usize) -> (usize, usize) {
    let (mut rows, mut columns) = (M_BLOCK, N_BLOCK);
    let enough = if threads == 1 { 1 } else { 4 * threads };
    while m.div_ceil(rows) * n.div_ceil(columns) < enough && (rows > ROWS || columns > PANEL) {
        // Narrower tiles gather the same rows again, lower ones read the same weights again: keep them even.
        if rows > ROWS && (rows >= columns || columns == PANEL) && m > ROWS {
            rows = (rows / 2).next_multiple_of(ROWS).min(rows - ROWS).max(ROWS);
        } else if columns > PANEL {
            columns /= 2;
        } else {
            break;
        }
    }
    (rows, columns)
}
