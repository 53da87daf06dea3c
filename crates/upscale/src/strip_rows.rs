//! How many rows the networks compute at once.

use kiln_nn::ops::Target;
use kiln_nn::strips::rows_of_strip;

/// The rows of a strip of the map on which most of a network works. Later maps, which have more pixels, have strips of
/// fewer rows, with about as many pixels. It changes no bit on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripRows {
    /// The whole map: what keeps a GPU busy.
    Whole,
    /// This many, rounded down to an even number, at least 2.
    Rows(usize),
}

/// Pixels of the strips that a CPU takes by default: the maps of a dense block stay in a cache of some megabytes.
const CACHED_PIXELS: usize = 4096;

/// The fewest rows that [`StripRows::all`] has.
const LEAST: usize = 2;

impl StripRows {
    /// The fastest for maps that are `width` wide.
    pub fn fastest(target: Target, width: usize) -> Self {
        match target.is_gpu() {
            true => Self::Whole,
            false => Self::Rows(rows_of_strip(CACHED_PIXELS, width).max(8)),
        }
    }

    /// From the fastest to the one that takes the least memory.
    pub(crate) fn all(target: Target, [height, width]: [usize; 2]) -> impl Iterator<Item = Self> {
        let fastest = Self::fastest(target, width);
        let rows = match fastest {
            Self::Whole => height.div_ceil(2),
            Self::Rows(rows) => rows / 2,
        };
        let fewer = std::iter::successors(Some(rows), |rows| Some(rows / 2)).take_while(|&rows| rows >= LEAST);
        [fastest].into_iter().chain(fewer.map(Self::Rows))
    }

    /// The rows of strips of a map of this height.
    pub(crate) fn of(self, height: usize) -> usize {
        match self {
            Self::Whole => height.next_multiple_of(2),
            Self::Rows(rows) => (rows / 2 * 2).max(2),
        }
    }
}
