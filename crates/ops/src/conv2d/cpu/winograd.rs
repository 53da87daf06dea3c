//! Winograd's minimal filtering, F(2x2, 3x3) (Lavin and Gray, arXiv 1509.09308): 16 multiplications for four outputs,
//! where the sum over taps takes 36.
//!
//! `Y = A^T [ (G g G^T) (B^T d B) ] A`, with the products summed over the input channels: 16 matrix products, one for
//! each position of the transformed tiles. A task computes them for some tiles and some columns, a block of input
//! channels at a time. Transformed weights are not cached, since they take 16/9 of the memory. With many tiles they are
//! computed once a call; with few, each task transforms the weights that it reads, a block at a time. Every transform
//! is a sum of at most four values, so f32 loses almost nothing. The transformed
//! operands are rounded to bf16 once more where the CPU multiplies bf16, and are f32 everywhere else.

use std::marker::PhantomData;
use std::ops::Range;

use candle_core::DType;
use rayon::prelude::*;

use super::epilogue::{Epilogue, TileEpilogue};
use super::transform::{LANES, OUT, OUTPUTS, POSITIONS, Sources, TAPS, TILE, Targets, input, output, weights};
use super::{Conv2d, Part, Shapes};
use crate::cpu::product::{Kernel, Out, PANEL, Panels, STRIDE};
use crate::cpu::scratch::elements;
use crate::cpu::{Element, Operand, Scratch};
use crate::error::Result;

/// Words of a block of input channels: the blocks of eight positions fill a row of [`STRIDE`] words.
const DEPTH: usize = 64;
/// Positions in such a row.
const POSITIONS_A_ROW: usize = POSITIONS / 2;
/// Tiles of a task, in calls of the kernel.
const CALLS: usize = 4;
/// Panels of a task.
const PANELS: usize = 4;
/// Blocks of tiles from which on weights are transformed once for all of them.
const MANY_BLOCKS: usize = 4;

/// Whether these shapes use this algorithm. The choice does not depend on the number of images and of a strip's rows,
/// since the result must not. Tiles are excluded: they multiply so fast that the transforms take longer than the
/// multiplications that they save.
pub(super) fn suits(dtype: DType, config: Conv2d, shapes: Shapes) -> bool {
    let Shapes { kh, kw, c_in, c_out, map_rows, w_out, .. } = shapes;
    !Kernel::of(dtype).is_tiled()
        && (kh, kw, config.stride) == (3, 3, 1)
        && c_in.is_multiple_of(LANES)
        && c_in >= 2 * LANES
        && c_out >= PANEL
        && map_rows * w_out >= 64
}

/// Bytes of the transformed weights where they are computed once a call: with many tiles.
pub(super) fn transformed(dtype: DType, shapes: Shapes, threads: usize) -> usize {
    let (tiles, panels) = (Grid::of(shapes).tiles(shapes.b), shapes.c_out.div_ceil(PANEL));
    let kernel = Kernel::of(dtype);
    let (tile_block, _) = blocks(tiles, panels, kernel.rows(), threads);
    let elements = panels * POSITIONS * shapes.c_in * PANEL;
    if tiles.div_ceil(tile_block) >= MANY_BLOCKS { elements * kernel.operand_bytes() } else { 0 }
}

pub(super) fn run<T: Element, W: Operand<T>>(
    x: &[Part<'_, T>],
    weight: Panels<'_, T>,
    config: Conv2d,
    shapes: Shapes,
    epilogue: &Epilogue<'_, T>,
) {
    let grid = Grid::of(shapes);
    let (tiles, panels) = (grid.tiles(shapes.b), shapes.c_out.div_ceil(PANEL));
    let kernel = Kernel::current::<W>();
    let (tile_block, panel_block) = blocks(tiles, panels, kernel.rows(), rayon::current_num_threads());
    let block = kernel.elements_in(DEPTH);
    let weight: Weights<'_, T, W> = Weights { stored: weight, c_in: shapes.c_in, block, multiplied: PhantomData };
    let mut transformed = Scratch::default();
    let transformed = match tiles.div_ceil(tile_block) {
        // Without memory for all of them, each task transforms its own: the same values, more often.
        MANY_BLOCKS.. => weight.transform_all(panels, &mut transformed).unwrap_or(&[]),
        _ => &[],
    };
    let columns = panels.div_ceil(panel_block);
    (0..tiles.div_ceil(tile_block) * columns).into_par_iter().for_each_init(Buffers::default, |buffers, task| {
        let (tile, panel) = (task / columns * tile_block, task % columns * panel_block);
        let tiles = tile..(tile + tile_block).min(tiles);
        let task = Task { x, weight: &weight, transformed, config, shapes, grid, tiles };
        task.run(panel..(panel + panel_block).min(panels), buffers, epilogue);
    });
}

/// Tiles and panels of a task: few enough that every thread gets several tasks. A call of the kernel takes `call` tiles.
fn blocks(tiles: usize, panels: usize, call: usize, threads: usize) -> (usize, usize) {
    let (mut tile_block, mut panel_block) = (CALLS * call, PANELS);
    let enough = if threads == 1 { 1 } else { 4 * threads };
    while tiles.div_ceil(tile_block) * panels.div_ceil(panel_block) < enough && (tile_block > call || panel_block > 1) {
        // Fewer tiles transform the same weights more often, fewer panels the same inputs, which costs less.
        if panel_block > 1 {
            panel_block /= 2;
        } else {
            tile_block /= 2;
        }
    }
    (tile_block, panel_block)
}

/// The weights of a convolution, transformed or not.
struct Weights<'a, T, W> {
    stored: Panels<'a, T>,
    c_in: usize,
    /// Input channels of a block.
    block: usize,
    multiplied: PhantomData<fn() -> W>,
}

/// The nine taps of a block of channels in the type that is multiplied, where that is not the stored one.
type Taps<W> = [Vec<W>; TAPS];

impl<T: Element, W: Operand<T>> Weights<'_, T, W> {
    /// Position by position, some input channels of a panel.
    fn transform(&self, panel: usize, start: usize, converted: &mut Taps<W>, transformed: &mut [W]) {
        let depth = transformed.len() / (POSITIONS * PANEL);
        let mut tap = 0;
        let taps = converted.each_mut().map(|converted| {
            let stored = self.stored.block(panel, tap * self.c_in + start, depth);
            tap += 1;
            W::panel(stored, converted)
        });
        let count = depth * PANEL;
        weights(&Sources::new(count, |tap| taps[tap]), &mut Targets::new(count, transformed.chunks_exact_mut(count)));
    }

    /// All panels, each block of input channels by block.
    fn transform_all<'a>(&self, panels: usize, transformed: &'a mut Scratch) -> Result<&'a [W]> {
        let transformed = transformed.try_get(panels * POSITIONS * self.c_in * PANEL)?;
        let panels = transformed.par_chunks_mut(POSITIONS * self.c_in * PANEL).enumerate();
        // Ten panels (320 channels) would be too few tasks for 16 threads.
        let blocks = panels.flat_map(|(panel, transformed)| {
            let blocks = transformed.par_chunks_mut(POSITIONS * self.block * PANEL).enumerate();
            blocks.map(move |(i, transformed)| (panel, i * self.block, transformed))
        });
        blocks.for_each_init(Taps::default, |taps, (panel, start, transformed)| {
            self.transform(panel, start, taps, transformed);
        });
        Ok(transformed)
    }
}

/// The number of tiles of an image in each direction.
#[derive(Clone, Copy)]
struct Grid {
    high: usize,
    wide: usize,
}

impl Grid {
    fn of(Shapes { h_out, w_out, .. }: Shapes) -> Self {
        Self { high: h_out.div_ceil(OUT), wide: w_out.div_ceil(OUT) }
    }

    /// Tiles of a batch.
    fn tiles(self, b: usize) -> usize {
        b * self.high * self.wide
    }

    /// Image, row and column of a tile, counted over the whole batch.
    fn place(self, tile: usize) -> (usize, usize, usize) {
        (tile / (self.high * self.wide), tile / self.wide % self.high, tile % self.wide)
    }
}

/// The buffers of a task.
struct Buffers<W> {
    kernel: Kernel,
    /// Transformed tiles: two times rows of eight positions.
    inputs: Scratch,
    taps: Taps<W>,
    /// The transformed weights of one panel, position by position.
    weights: Scratch,
    /// Panel by panel, position by position, tile by tile.
    products: Scratch,
}

impl<W: Element> Default for Buffers<W> {
    fn default() -> Self {
        let [inputs, weights, products] = [(); 3].map(|()| Scratch::default());
        Self { kernel: Kernel::current::<W>(), inputs, taps: Taps::default(), weights, products }
    }
}

/// Some tiles of a convolution.
struct Task<'a, T, W> {
    x: &'a [Part<'a, T>],
    weight: &'a Weights<'a, T, W>,
    /// All weights transformed, or none.
    transformed: &'a [W],
    config: Conv2d,
    shapes: Shapes,
    grid: Grid,
    tiles: Range<usize>,
}

impl<T: Element, W: Operand<T>> Task<'_, T, W> {
    fn run(&self, panels: Range<usize>, buffers: &mut Buffers<W>, epilogue: &Epilogue<'_, T>) {
        let (c_in, count) = (self.shapes.c_in, self.tiles.len());
        let Buffers { kernel, inputs, taps, weights, products } = buffers;
        let inputs: &mut [u32] = inputs.get(2 * count * STRIDE);
        let a_panel = POSITIONS * count * PANEL;
        let products: &mut [f32] = products.get(panels.len() * a_panel);
        for start in (0..c_in).step_by(self.weight.block) {
            let depth = self.weight.block.min(c_in - start);
            self.transform_inputs(start, depth, inputs);
            for (panel, products) in panels.clone().zip(products.chunks_exact_mut(a_panel)) {
                let weights = if self.transformed.is_empty() {
                    let weights = weights.get(POSITIONS * depth * PANEL);
                    self.weight.transform(panel, start, taps, weights);
                    weights
                } else {
                    &self.transformed[POSITIONS * PANEL * (panel * c_in + start)..][..POSITIONS * PANEL * depth]
                };
                for (position, products) in products.chunks_exact_mut(count * PANEL).enumerate() {
                    let rows = &inputs[position / POSITIONS_A_ROW * count * STRIDE..][..count * STRIDE];
                    let rows = &rows[position % POSITIONS_A_ROW * DEPTH..];
                    let weights = &weights[position * depth * PANEL..][..depth * PANEL];
                    let most = kernel.rows();
                    for (j, values) in products.chunks_mut(most * PANEL).enumerate() {
                        let tiles = values.len() / PANEL;
                        let out = Out { values, stride: PANEL, first: start == 0, columns: PANEL };
                        kernel.run(tiles, &rows[j * most * STRIDE..], weights, depth, out);
                    }
                }
            }
        }
        self.finish(panels, products, epilogue);
    }

    /// Writes some channels of all tiles, transformed, into rows of eight positions each: the upper half of the
    /// positions first.
    fn transform_inputs(&self, start: usize, depth: usize, inputs: &mut [u32]) {
        let zeros = [T::ZERO; 2 * DEPTH];
        let (upper, lower) = inputs.split_at_mut(self.tiles.len() * STRIDE);
        let rows = upper.chunks_exact_mut(STRIDE).zip(lower.chunks_exact_mut(STRIDE));
        for (tile, (upper, lower)) in self.tiles.clone().zip(rows) {
            let place = self.grid.place(tile);
            let words = upper.chunks_exact_mut(DEPTH).take(POSITIONS_A_ROW).chain(lower.chunks_exact_mut(DEPTH));
            let mut positions: Targets<'_, W, POSITIONS> = Targets::new(depth, words.map(elements));
            let mut done = 0;
            while done < depth {
                let (part, from) = Part::of(self.x, start + done);
                let channels = done..depth.min(done + part.channels - from);
                let pixels = self.pixels(part, place, from, &zeros[..channels.len()]);
                input::<T, W>(&pixels, &mut positions.part(channels.clone()));
                done = channels.end;
            }
        }
    }

    /// The pixels under a tile, each as many channels as `zeros` has from channel `from` of a part on; `zeros` outside of
    /// the image.
    fn pixels<'a>(
        &self,
        part: Part<'a, T>,
        (image, i, j): (usize, usize, usize),
        from: usize,
        zeros: &'a [T],
    ) -> Sources<'a, T, POSITIONS> {
        let Shapes { h, w, pad_top, .. } = self.shapes;
        let (top, left) = ((i * OUT).wrapping_sub(pad_top), (j * OUT).wrapping_sub(self.config.pad_before));
        if top < h && top + TILE <= h && left < w && left + TILE <= w {
            let first = ((image * h + top) * w + left) * part.channels + from;
            return Sources::inside(zeros.len(), part.values, first, [w * part.channels, part.channels]);
        }
        Sources::new(zeros.len(), |position| {
            let row = (i * OUT + position / TILE).wrapping_sub(pad_top);
            let column = (j * OUT + position % TILE).wrapping_sub(self.config.pad_before);
            if row < h && column < w {
                &part.values[((image * h + row) * w + column) * part.channels + from..][..zeros.len()]
            } else {
                zeros
            }
        })
    }

    fn finish(&self, panels: Range<usize>, products: &[f32], epilogue: &Epilogue<'_, T>) {
        let Shapes { h_out, w_out, c_out, .. } = self.shapes;
        let count = self.tiles.len();
        for (panel, products) in panels.zip(products.chunks_exact(POSITIONS * count * PANEL)) {
            let columns = panel * PANEL..((panel + 1) * PANEL).min(c_out);
            for (k, tile) in self.tiles.clone().enumerate() {
                let (image, i, j) = self.grid.place(tile);
                let pixels: [_; OUTPUTS] = std::array::from_fn(|position| {
                    let (row, column) = (i * OUT + position / OUT, j * OUT + position % OUT);
                    (row < h_out && column < w_out).then_some((image * h_out + row) * w_out + column)
                });
                let of_tile = |position: usize| &products[(position * count + k) * PANEL..];
                let whole = columns.start..columns.end - columns.len() % LANES;
                output(&Sources::new(whole.len(), of_tile), &epilogue.tile(pixels, whole.clone()));
                if whole.end < columns.end {
                    let rest = |position: usize| &of_tile(position)[whole.len()..];
                    let mut values = [[0f32; LANES]; OUTPUTS];
                    output(&Sources::new(LANES, rest), &TileEpilogue::sums(&mut values));
                    for (pixel, values) in
                        pixels.iter().zip(&values).filter_map(|(pixel, values)| Some(((*pixel)?, values)))
                    {
                        let rest = whole.end..columns.end;
                        epilogue.finish(pixel, rest.clone(), &values[..rest.len()]);
                    }
                }
            }
        }
    }
}
