//! The kernels for AMX: products of tiles of bf16 pairs, `tdpbf16ps`, and of bytes, `tdpbusd` (Intel's Architectures
//! Software Developer's Manual, volume 2).
//!
//! A panel's rows of pairs are rows of two tiles as they are: 16 columns each. A call multiplies up to two tiles of rows
//! with them, so that four tiles of the result stay in registers, and every loaded tile is used twice. The inner
//! dimension is cut into steps of up to 16 words, with one more, shorter step where no even cut exists
//! ([`step_words`]). An instruction sums even and odd elements of a step apart, in f32, then their sum is added to the
//! result: the order depends on the inner dimension alone. Sums of bytes are exact in any order.

use super::{PANEL, STRIDE};

#[cfg(test)]
mod emulation;
mod registers;

/// Rows of a tile, and words of its rows.
const TILE: usize = 16;
/// Bytes of a word: a pair of bf16, or an f32.
const WORD: usize = size_of::<u32>();
/// Rows of a call.
pub(super) const ROWS: usize = 2 * TILE;
/// Bytes of a row of a panel.
const PANEL_ROW: usize = PANEL * WORD;

/// Words of a full step, by the words of the inner dimension. A table, since a division takes as long as a product.
static STEP_WORDS: [u8; STRIDE + 1] = {
    let mut table = [0; STRIDE + 1];
    let mut words = 0;
    while words <= STRIDE {
        table[words] = step_words(words) as u8;
        words += 1;
    }
    table
};

/// Words of a full step, for an inner dimension of some words.
///
/// A step takes the same time whatever its length. So the largest length is taken, unless a shorter one needs no rest:
/// then the result is loaded and stored once.
const fn step_words(words: usize) -> usize {
    if words <= TILE {
        return if words == 0 { 1 } else { words };
    }
    let mut step = TILE;
    while step >= TILE / 2 {
        if words.is_multiple_of(step) {
            return step;
        }
        step -= 1;
    }
    TILE
}

/// The configuration of the tile registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Rows of the result, at most [`ROWS`].
    rows: usize,
    /// Words of a step, at most [`TILE`].
    words: usize,
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, by register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Registers 0 to 3 are the result, row of tiles by row, 4 and 5 the left operand, 6 and 7 the right one. Without
    /// lower rows their registers do not exist.
    fn new(shape: Shape) -> Self {
        let (upper, lower) = (shape.rows.min(TILE), shape.rows.saturating_sub(TILE));
        let mut config = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let registers =
            [(upper, TILE), (upper, TILE), (lower, TILE), (lower, TILE), (upper, shape.words), (lower, shape.words)];
        let right = [(shape.words, TILE); 2];
        for (i, (rows, words)) in registers.into_iter().chain(right).enumerate().filter(|(_, (rows, _))| *rows > 0) {
            (config.rows[i], config.row_bytes[i]) = (rows as u8, (words * WORD) as u16);
        }
        config
    }
}

/// Some steps of equal length. Strides are in bytes.
struct Steps {
    a: *const u8,
    a_stride: usize,
    /// Rows of a panel, one after another.
    b: *const u8,
    out: *mut u8,
    out_stride: usize,
    count: usize,
    /// Whether the result is overwritten.
    first: bool,
    /// Whether all columns of the panel are computed, or the first half.
    whole: bool,
}

/// Computes some steps.
///
/// # Safety
/// The shape's rows of `a`, with `count` times its words, and of `out` are valid, as are `count` times its words of rows
/// of `b`. The process may use tiles.
type Multiply = unsafe fn(Shape, &Steps);

/// The kernel by tile registers, or by what stands for them in tests.
pub(super) struct Tiles {
    multiply: Multiply,
    release: fn(),
}

impl Tiles {
    /// The kernel of a CPU with AMX. Only a process that may use tiles calls it.
    pub(super) fn of_the_cpu() -> Self {
        Self { multiply: registers::multiply, release: registers::release }
    }

    /// The kernel of unsigned bytes times signed bytes, summed in 32 bits.
    pub(super) fn bytes_of_the_cpu() -> Self {
        Self { multiply: registers::multiply_bytes, release: registers::release }
    }

    /// The kernel with an array for each register.
    #[cfg(test)]
    pub(super) fn emulated() -> Self {
        Self { multiply: emulation::multiply, release: || () }
    }

    /// The configuration for bytes.
    #[cfg(test)]
    pub(super) fn emulated_bytes() -> Self {
        Self { multiply: emulation::multiply_bytes, release: || () }
    }

    /// See [`super::Run`], for up to [`ROWS`] rows.
    ///
    /// # Safety
    /// Asserted by [`super::Kernel::run`].
    #[expect(clippy::too_many_arguments, reason = "the arguments of every kernel, and its two parameters")]
    pub(super) unsafe fn run(
        &self,
        rows: usize,
        whole: bool,
        words: usize,
        a: *const u32,
        b: *const u8,
        out: *mut f32,
        stride: usize,
        first: bool,
    ) {
        let step = usize::from(STEP_WORDS[words]);
        let (count, rest) = (words / step, words % step);
        let steps = Steps {
            a: a.cast(),
            a_stride: STRIDE * WORD,
            b,
            out: out.cast(),
            out_stride: stride * WORD,
            count,
            first,
            whole,
        };
        // SAFETY: by the contract all words of the rows of `a` and all rows of the panel are valid; the rest follows the
        // full steps in both.
        unsafe {
            (self.multiply)(Shape { rows, words: step }, &steps);
            if rest > 0 {
                let (a, b) = (steps.a.add(count * step * WORD), b.add(count * step * PANEL_ROW));
                (self.multiply)(Shape { rows, words: rest }, &Steps { a, b, count: 1, first: false, ..steps });
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        (self.release)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_even_where_that_is_possible() {
        let found = [0, 1, 5, 10, 16, 17, 20, 26, 39, 40, 80, 160, 256].map(step_words);
        assert_eq!(found, [1, 1, 5, 10, 16, 16, 10, 13, 13, 10, 16, 16, 16]);
    }

    #[test]
    fn registers_without_rows_do_not_exist() {
        let sizes = |rows, words| {
            let config = Config::new(Shape { rows, words });
            (0..8).map(|i| (config.rows[i], config.row_bytes[i])).collect::<Vec<_>>()
        };
        assert_eq!(sizes(16, 13), [(16, 64), (16, 64), (0, 0), (0, 0), (16, 52), (0, 0), (13, 64), (13, 64)]);
        assert_eq!(sizes(19, 10), [(16, 64), (16, 64), (3, 64), (3, 64), (16, 40), (3, 40), (10, 64), (10, 64)]);
    }
}
