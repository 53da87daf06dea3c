//! How the pixels and the output channels of a product are cut into tiles.

use super::Input;

/// Pixels of a tile, as a power of two (`PIXELS` in `hopper_product.cuh`).
const PIXEL_BITS: u32 = 7;
/// Rows of the weight for a tile, of the kernels that there are, and the parts of operands that a block loads ahead. The first one is
/// for wide operands alone.
const KERNELS: [(usize, usize); 4] = [(256, 3), (160, 5), (128, 5), (64, 8)];
/// Such a pair for the kernel with GEGLU.
const GEGLU_KERNEL: (usize, usize) = (256, 4);
/// Bytes of input channels of a part.
const BYTES: usize = 128;
/// The cost of a tile besides its products, in output channels: its first operands and its results.
const OVERHEAD: usize = 24;
/// Blocks of a cluster, which compute two tiles of the same output channels (`CLUSTER` in `hopper_product.cuh`).
pub(super) const CLUSTER: usize = 2;

/// The tiles of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Columns, rows and images of a tile, as powers of two.
    pub(super) bits: [u32; 3],
    /// Tiles in each of these directions.
    pub(super) pixels: [usize; 3],
    /// Rows of the weight for a tile.
    pub(super) columns: usize,
    /// Output channels of a tile: as many, or with GEGLU half of them.
    pub(super) results: usize,
    /// Tiles over the output channels.
    pub(super) over_columns: usize,
    /// Parts of operands in shared memory.
    pub(super) stages: usize,
}

impl Tiling {
    /// For images of `[w, h, b]` pixels and `n` output channels on `multiprocessors`. It is chosen so that the slowest of these
    /// has the least to do. Sums do not depend on it.
    pub(super) fn of(size: [usize; 3], n: usize, multiprocessors: usize, input: Input) -> Self {
        let cut = |bits: [u32; 3]| -> [usize; 3] { std::array::from_fn(|i| size[i].div_ceil(1 << bits[i])) };
        let all = (0..=PIXEL_BITS).flat_map(|w| (0..=PIXEL_BITS - w).map(move |h| [w, h, PIXEL_BITS - w - h]));
        // Square tiles share the most pixels between taps; a tile of fewer images needs fewer of them.
        let bits = all.min_by_key(|bits| (cut(*bits).iter().product::<usize>(), bits[2], bits[0].abs_diff(bits[1])));
        let bits = bits.unwrap_or([PIXEL_BITS, 0, 0]);
        let pixels = cut(bits);
        let time = |columns: usize| {
            let clusters = pixels.iter().product::<usize>().div_ceil(CLUSTER) * n.div_ceil(columns);
            clusters.div_ceil((multiprocessors / CLUSTER).max(1)) * (columns + OVERHEAD)
        };
        let [wide, first, others @ ..] = KERNELS;
        let kernels = [first].into_iter().chain(others).chain((input == Input::Wide).then_some(wide));
        let (columns, stages) = match input {
            Input::Geglu => GEGLU_KERNEL,
            _ => kernels.min_by_key(|(columns, _)| time(*columns)).unwrap_or(first),
        };
        let results = if input == Input::Geglu { columns / 2 } else { columns };
        Self { bits, pixels, columns, results, over_columns: n.div_ceil(results), stages }
    }

    /// All tiles, in whole clusters.
    pub(super) fn count(&self) -> usize {
        self.pixels.iter().product::<usize>().next_multiple_of(CLUSTER) * self.over_columns
    }

    /// The box of the result that a group of warps computes: columns, rows and images of half a tile.
    pub(super) fn box_of_group(&self) -> [u32; 3] {
        let mut bits = self.bits;
        if let Some(half) = bits.iter_mut().rev().find(|bits| **bits > 0) {
            *half -= 1;
        }
        bits.map(|bits| 1 << bits)
    }

    /// Shared memory of a block in bytes, at least that of `Shared` in `hopper_product.cuh`: the parts, the tile's results of 16 bits,
    /// for each group of warps the biases of the weight's rows and their scales or one number, and the barriers, aligned to 1 KiB.
    pub(super) fn shared(&self, input: Input) -> usize {
        let parts = self.stages * ((1 << PIXEL_BITS) + self.columns) * BYTES;
        let results = (self.results << PIXEL_BITS) * size_of::<u16>();
        let scales = if input == Input::Bytes { self.columns } else { 1 };
        let columns = 2 * (self.columns + scales) * size_of::<f32>();
        let barriers = (2 * self.stages + 2) * size_of::<u64>();
        (parts + results + columns + barriers).next_multiple_of(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_pixels_and_fit_shared_memory() {
        let sizes = [([2048, 1, 1], 1280), ([64, 64, 2], 320), ([8, 8, 2], 1280), ([23, 17, 3], 48), ([1, 1, 2], 64)];
        let inputs = [Input::Bytes, Input::Wide, Input::Geglu];
        for (size, n, input) in sizes.into_iter().flat_map(|(size, n)| inputs.map(|input| (size, n, input))) {
            let tiling = Tiling::of(size, n, 132, input);
            assert_eq!(tiling.bits.iter().sum::<u32>(), PIXEL_BITS);
            for (i, pixels) in size.iter().enumerate() {
                assert!(tiling.pixels[i] << tiling.bits[i] >= *pixels);
            }
            assert_eq!(tiling.box_of_group().iter().product::<u32>(), 64);
            assert!(tiling.over_columns * tiling.results >= n && tiling.shared(input) <= 227 << 10, "{tiling:?}");
        }
        assert_eq!(Tiling::of([2048, 1, 1], 1280, 132, Input::Bytes).count(), 128); // one for nearly each multiprocessor of an H200
        assert_eq!(Tiling::of([8, 8, 2], 1280, 132, Input::Bytes).pixels, [1, 1, 1]);
        // The sizes of a test of convolutions, which is to run each kernel.
        let of_kernels =
            [([75, 77, 3], 48, 64), ([91, 96, 1], 128, 128), ([106, 110, 1], 160, 160), ([106, 115, 1], 256, 256)];
        for (size, n, columns) in of_kernels {
            assert_eq!(Tiling::of(size, n, 132, Input::Wide).columns, columns);
        }
    }
}
