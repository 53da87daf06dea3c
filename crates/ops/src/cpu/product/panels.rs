//! The right operand, packed.

use crate::cpu::Element;

/// Columns of a panel: two registers of 16 f32.
pub(crate) const PANEL: usize = 32;

/// How many elements a `(k, n)` matrix takes in panels: whole panels, an even number of rows.
///
/// A panel's rows lie one after another; in paired types two rows are interleaved, so that neighbours in `k` form one
/// 32-bit word.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    k.next_multiple_of(2) * n.next_multiple_of(PANEL)
}

/// A `(k, n)` matrix in panels of [`PANEL`] columns, filled up with zeros.
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

    /// Rows `start..start + depth` of a panel, the last of an odd number followed by zeros; `start` is even.
    pub(crate) fn block(&self, panel: usize, start: usize, depth: usize) -> &'a [T] {
        let rows = self.k.next_multiple_of(2);
        let first = (panel * rows + start) * PANEL;
        &self.values[first..first + depth.next_multiple_of(2) * PANEL]
    }
}

/// Packs a `(k, n)` matrix whose element `(row, column)` is `value(row, column)`, into zeros.
pub(crate) fn pack<T: Copy>(k: usize, n: usize, paired: bool, value: impl Fn(usize, usize) -> T, packed: &mut [T]) {
    let rows = k.next_multiple_of(2);
    for (panel, packed) in packed.chunks_exact_mut((rows * PANEL).max(1)).enumerate() {
        let columns = panel * PANEL..((panel + 1) * PANEL).min(n);
        for row in 0..k {
            let (start, step) = if paired { (row / 2 * 2 * PANEL + row % 2, 2) } else { (row * PANEL, 1) };
            for (packed, column) in packed[start..].iter_mut().step_by(step).zip(columns.clone()) {
                *packed = value(row, column);
            }
        }
    }
}
