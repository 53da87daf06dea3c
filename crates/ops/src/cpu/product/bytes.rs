//! The matrix product of bytes: unsigned activations times signed weights, summed in 32 bits.
//!
//! Tasks and blocks are those of the other product ([`super`]). The sums are exact, so neither the kernel nor the
//! number of threads changes a bit.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::bytes::{BYTES, ByteKernel};
use super::{Out, PANEL, STRIDE, TILE_GAP, Tile, blocks};
use crate::cpu::Scratch;
use crate::cpu::scratch::elements;
use crate::stop;

/// The `(k, n)` matrix of signed bytes in panels of [`PANEL`] columns: panel by panel, each with [`panel_len`] bytes at
/// its start. Four neighbors in `k` form a word, and `k` is padded with zeros to whole words.
#[derive(Clone, Copy)]
pub(crate) struct BytePanels<'a> {
    values: &'a [u8],
    /// Bytes from one panel to the next.
    stride: usize,
    k: usize,
    n: usize,
}

/// Bytes of a panel with `k` rows.
pub(crate) fn panel_len(k: usize) -> usize {
    k.next_multiple_of(BYTES) * PANEL
}

/// The position of an element in its panel.
pub(crate) fn place(row: usize, column: usize) -> usize {
    (row / BYTES * PANEL + column) * BYTES + row % BYTES
}

impl<'a> BytePanels<'a> {
    /// Panics unless `values` has all panels.
    pub(crate) fn new(values: &'a [u8], stride: usize, k: usize, n: usize) -> Self {
        assert!(stride >= panel_len(k) && values.len() >= n.div_ceil(PANEL) * stride, "panels of a ({k}, {n}) matrix");
        Self { values, stride, k, n }
    }

    /// Words `start / BYTES..` of a panel, `words` of them.
    fn block(&self, panel: usize, start: usize, words: usize) -> &'a [u8] {
        let first = panel * self.stride + start * PANEL;
        &self.values[first..first + words * PANEL * BYTES]
    }

    /// Computes all tiles of `m` rows on all threads. `gather(row, k, out)` writes bytes `k..k + out.len()` of a row of
    /// `a`. `finish` is called once for every tile, whose values have the bits of `i32`.
    pub(crate) fn multiply(
        &self,
        m: usize,
        gather: impl Fn(usize, usize, &mut [u8]) + Sync,
        finish: impl Fn(Tile<'_>) + Sync,
    ) {
        self.multiply_by(ByteKernel::current, m, gather, finish);
    }

    /// Multiplies by a kernel.
    pub(super) fn multiply_by(
        &self,
        kernel: impl Fn() -> ByteKernel + Sync,
        m: usize,
        gather: impl Fn(usize, usize, &mut [u8]) + Sync,
        finish: impl Fn(Tile<'_>) + Sync,
    ) {
        let n = self.n;
        let sizes = kernel();
        let (m_block, n_block) = blocks(m, n, sizes.rows(), sizes.task(), rayon::current_num_threads());
        let (rows, columns) = (m.div_ceil(m_block), n.div_ceil(n_block));
        let buffers = || (kernel(), Scratch::default(), Scratch::default());
        let stops = stop::asked();
        (0..rows * columns).into_par_iter().for_each_init(buffers, |(kernel, a, tile), task| {
            if stops() {
                return;
            }
            // Tasks one after another share the larger operand's block, which then comes from a cache.
            let (row, column) = if n > m { (task % rows, task / rows) } else { (task / columns, task % columns) };
            let (row, column) = (row * m_block, column * n_block);
            let (rows, columns) = (row..(row + m_block).min(m), column..(column + n_block).min(n));
            finish(self.tile(kernel, a, tile, rows, columns, &gather));
        });
    }

    /// Computes the tile of `rows` and `columns` on this thread. `columns` start at a panel.
    fn tile<'b>(
        &self,
        kernel: &ByteKernel,
        a: &mut Scratch,
        tile: &'b mut Scratch,
        rows: Range<usize>,
        columns: Range<usize>,
        gather: &impl Fn(usize, usize, &mut [u8]),
    ) -> Tile<'b> {
        let stride = columns.len().next_multiple_of(PANEL) + TILE_GAP;
        let panels = columns.start / PANEL..columns.end.div_ceil(PANEL);
        let tile: &mut [f32] = tile.get(rows.len() * stride);
        if self.k == 0 {
            tile.fill(0.0); // the bits of an i32 of 0 too
        }
        let gathered: &mut [u32] = a.get(rows.len() * STRIDE);
        let (block, most_rows) = (kernel.k_block(), kernel.rows());
        for start in (0..self.k).step_by(block) {
            let depth = block.min(self.k - start);
            let words = depth.div_ceil(BYTES);
            for (row, a) in rows.clone().zip(gathered.chunks_exact_mut(STRIDE)) {
                // What pads the last word meets zeros of the panel.
                gather(row, start, &mut elements(a)[..depth]);
            }
            for (i, a) in gathered.chunks(most_rows * STRIDE).enumerate() {
                let count = a.len() / STRIDE;
                for (j, panel) in panels.clone().enumerate() {
                    let values = &mut tile[i * most_rows * stride + j * PANEL..];
                    let out = Out { values, stride, first: start == 0, columns: columns.end - panel * PANEL };
                    kernel.run(count, a, self.block(panel, start, words), words, out);
                }
            }
        }
        Tile { rows, columns, values: tile, stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// Bytes of a splitmix64 stream.
    fn bytes(count: usize, seed: u64) -> Vec<u8> {
        let value = |i: usize| {
            let z = (i as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z >> 40) as u8
        };
        (0..count).map(value).collect()
    }

    fn kernels() -> Vec<fn() -> ByteKernel> {
        let mut all: Vec<fn() -> ByteKernel> = vec![ByteKernel::current, || ByteKernel::on(Isa::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let widest = Isa::current();
            all.push(ByteKernel::emulated_tiles);
            if widest >= Isa::Avx2 {
                all.push(|| ByteKernel::on(Isa::Avx2));
            }
            if widest >= Isa::Avx512 {
                all.extend([ByteKernel::without_dot_products as fn() -> ByteKernel, || ByteKernel::on(Isa::Avx512)]);
            }
        }
        all
    }

    #[test]
    fn all_kernels_have_the_exact_sums() {
        let sizes =
            [(1, 1, 1), (15, 33, 7), (3, 64, 2063), (130, 300, 513), (28, 320, 1024), (33, 40, 4100), (7, 31, 0)];
        for (m, n, k) in sizes {
            let (mut a, mut b) = (bytes(m * k, 1), bytes(k * n, 2));
            // The largest magnitudes, side by side, where 16 bits would saturate.
            a.iter_mut().take(k).for_each(|a| *a = 255);
            b.iter_mut().take(8 * n).for_each(|b| *b = 127);
            let mut packed = vec![0; n.div_ceil(PANEL) * panel_len(k)];
            for (row, column) in (0..k).flat_map(|row| (0..n).map(move |column| (row, column))) {
                packed[column / PANEL * panel_len(k) + place(row, column % PANEL)] = b[row * n + column];
            }
            let sum = |row: usize, column: usize| -> i32 {
                (0..k).map(|p| i32::from(a[row * k + p]) * i32::from(b[p * n + column].cast_signed())).sum()
            };
            let expected: Vec<i32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
            for kernel in kernels() {
                let found = std::sync::Mutex::new(vec![i32::MIN; m * n]);
                BytePanels::new(&packed, panel_len(k), k, n).multiply_by(
                    kernel,
                    m,
                    |row, start, out| out.copy_from_slice(&a[row * k + start..][..out.len()]),
                    |tile| {
                        for row in tile.rows.clone() {
                            let values = tile.row(row).iter().map(|value| value.to_bits().cast_signed());
                            let mut found = found.lock().unwrap();
                            let place = &mut found[row * n..][tile.columns.clone()];
                            place.iter_mut().zip(values).for_each(|(place, value)| *place = value);
                        }
                    },
                );
                assert!(*found.lock().unwrap() == expected, "({m}, {n}, {k})");
            }
        }
    }
}
