//! The packed right operand of the matrix product.

use candle_core::WithDType;
use rayon::prelude::*;

use crate::cpu::Element;

/// Columns of a panel: two registers of 16 f32.
pub(crate) const PANEL: usize = 32;

/// The number of elements of a `(k, n)` matrix in panels: whole panels, an even number of rows.
///
/// The rows of a panel are contiguous. In paired types two rows are interleaved, so that neighbors in `k` form one
/// 32-bit word.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    k.next_multiple_of(2) * n.next_multiple_of(PANEL)
}

/// A `(k, n)` matrix in panels of [`PANEL`] columns, padded with zeros.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a, T> {
    values: &'a [T],
    k: usize,
    n: usize,
}

impl<'a, T: Element> Panels<'a, T> {
    /// Panics unless `values` has [`packed_len`] elements.
    pub(crate) fn new(values: &'a [T], k: usize, n: usize) -> Self {
        assert_eq!(values.len(), packed_len(k, n), "panels of a ({k}, {n}) matrix");
        Self { values, k, n }
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }

    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Rows `start..start + depth` of a panel, an odd number padded with zeros. `start` is even.
    pub(crate) fn block(&self, panel: usize, start: usize, depth: usize) -> &'a [T] {
        let rows = self.k.next_multiple_of(2);
        let first = (panel * rows + start) * PANEL;
        &self.values[first..first + depth.next_multiple_of(2) * PANEL]
    }
}

/// Packs a `(k, n)` matrix whose element `(row, column)` is `value(row, column)` into zeroed memory.
pub(crate) fn pack<T: Copy>(k: usize, n: usize, paired: bool, value: impl Fn(usize, usize) -> T, packed: &mut [T]) {
    let rows = k.next_multiple_of(2);
    for (panel, packed) in packed.chunks_exact_mut((rows * PANEL).max(1)).enumerate() {
        let columns = panel * PANEL..((panel + 1) * PANEL).min(n);
        for row in 0..k {
            let (start, step) = place(row, paired);
            for (packed, column) in packed[start..].iter_mut().step_by(step).zip(columns.clone()) {
                *packed = value(row, column);
            }
        }
    }
}

/// Stored elements of a column that are packed at a time. Those of a panel's columns fit into the L1 cache.
const BLOCK: usize = 512;

/// Packs the weight of `n` columns and `taps` times `channels` rows, stored column by column, channels before taps:
/// `read(start, out)` reads stored elements. In panels the taps come before the channels. Every element is written.
pub(crate) fn pack_stored<T: WithDType>(
    (n, taps, channels): (usize, usize, usize),
    paired: bool,
    read: impl Fn(usize, &mut [T]) + Sync,
    packed: &mut [T],
) {
    let k = taps * channels;
    let rows = k.next_multiple_of(2);
    let zero = T::from_f64(0.0);
    let depth = (BLOCK / taps.max(1)).clamp(1, channels.max(1)); // channels of a block
    let width = depth * taps;
    // Columns that pad the last panel stay zero.
    packed.par_chunks_exact_mut((rows * PANEL).max(1)).enumerate().for_each_init(Vec::new, |block, (panel, packed)| {
        if rows > k {
            packed[(rows - 2) * PANEL..].fill(zero); // pads an odd number of rows
        }
        block.clear();
        block.resize(PANEL * width, zero);
        let columns = PANEL.min(n - panel * PANEL);
        for first in (0..channels).step_by(depth) {
            let depth = depth.min(channels - first);
            for (column, block) in block.chunks_exact_mut(width).take(columns).enumerate() {
                let start = ((panel * PANEL + column) * channels + first) * taps;
                read(start, &mut block[..depth * taps]);
            }
            for tap in 0..taps {
                for channel in 0..depth {
                    let (row, from) = (tap * channels + first + channel, channel * taps + tap);
                    let (start, step) = place(row, paired);
                    let to = packed[start..].iter_mut().step_by(step);
                    to.zip(block.chunks_exact(width)).for_each(|(to, block)| *to = block[from]);
                }
            }
        }
    });
}

/// The position of a row's elements in a panel: the first, and the distance between two.
fn place(row: usize, paired: bool) -> (usize, usize) {
    if paired { (row / 2 * 2 * PANEL + row % 2, 2) } else { (row * PANEL, 1) }
}
