//! Linear layers whose matrix has a storage type of its own. The matrix is dequantized a band of columns at a time,
//! into the panels that the product reads, and the product is the usual one ([`direct`]). If each task dequantized its
//! own panels, elements would be converted several times; this way each is converted once a call, and the threads share
//! the work.

use super::epilogue::Epilogue;
use super::{Conv2d, Part, Shapes, direct};
use crate::cpu::Element;
use crate::cpu::product::{Panels, pack_stored, packed_len};
use crate::matrix::{StoredMatrix, band};

/// Elements of a band's panels.
pub(super) fn numbers(n: usize, k: usize) -> usize {
    packed_len(k, band(n, k))
}

/// `panels` has [`numbers`] elements.
pub(super) fn run<T: Element>(
    x: &[Part<'_, T>],
    matrix: &StoredMatrix<'_>,
    panels: &mut [T],
    config: Conv2d,
    shapes: Shapes,
    epilogue: &Epilogue<'_, T>,
) {
    let Shapes { c_in: k, c_out: n, .. } = shapes;
    let band = band(n, k);
    for first in (0..n).step_by(band) {
        let columns = band.min(n - first);
        let panels = &mut panels[..packed_len(k, columns)];
        pack_stored((columns, 1, k), T::PAIRED, |start, out| matrix.read(first * k + start, out), panels);
        direct::run(x, Panels::new(panels, k, columns), first, config, shapes, epilogue);
    }
}
