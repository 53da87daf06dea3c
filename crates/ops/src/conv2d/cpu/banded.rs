//! Linear layers whose matrix is stored in a type of its own: its numbers are made a band of columns at a time, in the
//! panels that the product reads, and the product is the one that runs otherwise ([`direct`]). Other than a task that
//! makes the panels it needs this makes each number once a call, and the threads share the making.

use super::epilogue::Epilogue;
use super::{Conv2d, Shapes, direct};
use crate::cpu::Element;
use crate::cpu::product::{Panels, pack_stored, packed_len};
use crate::matrix::{StoredMatrix, band};

/// Numbers of a band's panels.
pub(super) fn numbers(n: usize, k: usize) -> usize {
    packed_len(k, band(n, k))
}

/// `panels` holds [`numbers`] of them.
pub(super) fn run<T: Element>(
    x: &[T],
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
