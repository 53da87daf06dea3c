//! Winograd's minimal filtering (Lavin and Gray, arXiv 1509.09308): F(2x2, 3x3) takes 16 multiplications for four outputs,
//! and F(4x4, 3x3) 36 for sixteen, where sums over taps take 36 and 144.
//!
//! `Y = A^T [ (G g G^T) (B^T d B) ] A`, with the products summed over the input channels: a matrix product for each
//! position of the transformed tiles. A task computes them for some tiles and some columns, a block of input channels at
//! a time.
//!
//! Operands in f32 use F(4x4, 3x3). Its error in f32 is about twice that of a sum over taps (`tests.rs` bounds it against
//! f64). Where the CPU multiplies bf16, the transformed operands are rounded to bf16 once more: that error would grow with the
//! constants of the larger transform, so bf16 uses F(2x2, 3x3).
//!
//! Transformed weights are not cached, since they take 16/9 or four times the memory. Each task transforms the weights that
//! it reads, a block at a time: reading them transformed, from beyond the caches, takes longer. Only where many threads leave
//! few tiles for a task, F(2x2, 3x3) transforms them once a call.

use std::marker::PhantomData;
use std::ops::Range;

use candle_core::DType;
use rayon::prelude::*;

use super::epilogue::{Epilogue, TileEpilogue};
use super::transform::{LANES, MOST_OUTPUTS, Sources, TAPS, Targets, TileSize};
use super::{Conv2d, Part, Shapes};
use crate::cpu::product::{Kernel, Out, PANEL, Panels, STRIDE};
use crate::cpu::scratch::elements;
use crate::cpu::{Element, Operand, Scratch};
use crate::error::Result;
use crate::stop;

/// Words of a block of input channels: the blocks of eight positions fill a row of [`STRIDE`] words.
const DEPTH: usize = 64;
/// Positions in such a row.
const POSITIONS_A_ROW: usize = 8;
/// Panels of a task. With fewer, inputs would be transformed more often.
const PANELS: usize = 4;
/// Elements between the positions of transformed weights. Without them, all values that a transform writes would be in one
/// set of the L1 cache, which holds 8 or 12 of them.
const GAP: usize = 64;
/// Blocks of tiles from which on F(2x2, 3x3) may transform weights once for all of them.
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

fn tile_size(kernel: &Kernel) -> TileSize {
    if kernel.operand_bytes() == size_of::<f32>() { TileSize::Four } else { TileSize::Two }
}

/// The most tiles of a task, whole calls of the kernel. With fewer, weights would be transformed more often; the products of both sizes
/// take about a MiB.
fn most_tiles(size: TileSize, kernel: &Kernel) -> usize {
    let calls = match size {
        TileSize::Two => 8,
        TileSize::Four => 4,
    };
    calls * kernel.rows()
}

/// Whether weights are transformed once a call for so many tiles.
fn is_transformed_once(size: TileSize, kernel: &Kernel, tiles: usize, tile_block: usize) -> bool {
    size == TileSize::Two && tile_block < most_tiles(size, kernel) && tiles.div_ceil(tile_block) >= MANY_BLOCKS
}

/// Bytes of the transformed weights where they are computed once a call.
pub(super) fn transformed(dtype: DType, shapes: Shapes, threads: usize) -> usize {
    let kernel = Kernel::of(dtype);
    let size = tile_size(&kernel);
    let (tiles, panels) = (Grid::of(size, shapes).tiles(shapes.b), shapes.c_out.div_ceil(PANEL));
    let (tile_block, _) = blocks(size, &kernel, tiles, panels, threads);
    if !is_transformed_once(size, &kernel, tiles, tile_block) {
        return 0;
    }
    panels * panel_elements(size, shapes.c_in, kernel.elements_in(DEPTH)) * kernel.operand_bytes()
}

/// Elements of a transformed panel of `c_in` channels, in blocks of `block`.
fn panel_elements(size: TileSize, c_in: usize, block: usize) -> usize {
    size.positions() * (c_in * PANEL + c_in.div_ceil(block) * GAP)
}

pub(super) fn run<T: Element, W: Operand<T>>(
    x: &[Part<'_, T>],
    weight: Panels<'_, T>,
    config: Conv2d,
    shapes: Shapes,
    epilogue: &Epilogue<'_, T>,
) {
    let kernel = Kernel::current::<W>();
    let size = tile_size(&kernel);
    let grid = Grid::of(size, shapes);
    let (tiles, panels) = (grid.tiles(shapes.b), shapes.c_out.div_ceil(PANEL));
    let (tile_block, panel_block) = blocks(size, &kernel, tiles, panels, rayon::current_num_threads());
    let block = kernel.elements_in(DEPTH);
    let weight: Weights<'_, T, W> = Weights { stored: weight, size, c_in: shapes.c_in, block, multiplied: PhantomData };
    let mut transformed = None;
    let transformed = match is_transformed_once(size, &kernel, tiles, tile_block) {
        // Without memory for all of them, each task transforms its own: the same values, more often.
        true => weight.transform_all(panels, transformed.insert(Scratch::default())).unwrap_or(&[]),
        false => &[],
    };
    let (rows, columns) = (tiles.div_ceil(tile_block), panels.div_ceil(panel_block));
    // Tasks one after another read the same of what is larger, which then comes from a cache.
    let weights_are_larger = shapes.c_out * size.positions() > shapes.b * shapes.h * shapes.w;
    let stops = stop::asked();
    (0..rows * columns).into_par_iter().for_each_init(Buffers::default, |buffers, task| {
        if stops() {
            return;
        }
        let (row, column) =
            if weights_are_larger { (task % rows, task / rows) } else { (task / columns, task % columns) };
        let (tile, panel) = (row * tile_block, column * panel_block);
        let tiles = tile..(tile + tile_block).min(tiles);
        let task = Task { x, weight: &weight, transformed, config, shapes, grid, tiles };
        task.run(panel..(panel + panel_block).min(panels), buffers, epilogue);
    });
}

/// Tiles and panels of a task: few enough that every thread gets several tasks.
fn blocks(size: TileSize, kernel: &Kernel, tiles: usize, panels: usize, threads: usize) -> (usize, usize) {
    let (mut tile_block, mut panel_block) = (most_tiles(size, kernel), PANELS);
    let call = kernel.rows();
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
    size: TileSize,
    c_in: usize,
    /// Input channels of a block.
    block: usize,
    multiplied: PhantomData<fn() -> W>,
}

/// The nine taps of a block of channels in the type that is multiplied, where that is not the stored one.
type Taps<W> = [Vec<W>; TAPS];

impl<T: Element, W: Operand<T>> Weights<'_, T, W> {
    /// Elements of some transformed channels of a panel.
    fn elements(&self, channels: usize) -> usize {
        panel_elements(self.size, channels, self.block)
    }

    /// Position by position, some input channels of a panel.
    fn transform(&self, panel: usize, start: usize, converted: &mut Taps<W>, transformed: &mut [W]) {
        let count = self.size.positions();
        let distance = transformed.len() / count;
        let depth = (distance - GAP) / PANEL;
        let mut tap = 0;
        let taps = converted.each_mut().map(|converted| {
            let stored = self.stored.block(panel, tap * self.c_in + start, depth);
            tap += 1;
            W::panel(stored, converted)
        });
        let values = depth * PANEL;
        let mut positions = Targets::new(count, values, transformed.chunks_exact_mut(distance));
        self.size.weights(&Sources::new(TAPS, values, |tap| taps[tap]), &mut positions);
    }

    /// All panels, each block of input channels by block.
    fn transform_all<'a>(&self, panels: usize, transformed: &'a mut Scratch) -> Result<&'a [W]> {
        let transformed = transformed.try_get(panels * self.elements(self.c_in))?;
        let panels = transformed.par_chunks_mut(self.elements(self.c_in)).enumerate();
        // Ten panels (320 channels) would be too few tasks for 16 threads.
        let blocks = panels.flat_map(|(panel, transformed)| {
            let blocks = transformed.par_chunks_mut(self.elements(self.block)).enumerate();
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
    size: TileSize,
    high: usize,
    wide: usize,
}

impl Grid {
    fn of(size: TileSize, Shapes { h_out, w_out, .. }: Shapes) -> Self {
        Self { size, high: h_out.div_ceil(size.out()), wide: w_out.div_ceil(size.out()) }
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
    /// Transformed tiles, in rows of eight positions each.
    inputs: Scratch,
    taps: Taps<W>,
    /// The transformed weights of one panel, position by position.
    weights: Scratch,
    /// Panel by panel, position by position, tile by tile.
    products: Scratch,
}

impl<W: Element> Default for Buffers<W> {
    fn default() -> Self {
        // From the largest to the smallest, as they are kept.
        let [products, weights, inputs] = [(); 3].map(|()| Scratch::default());
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
        let positions = self.grid.size.positions();
        let Buffers { kernel, inputs, taps, weights, products } = buffers;
        let inputs: &mut [u32] = inputs.get(positions.div_ceil(POSITIONS_A_ROW) * count * STRIDE);
        let a_panel = positions * count * PANEL;
        let products: &mut [f32] = products.get(panels.len() * a_panel);
        for start in (0..c_in).step_by(self.weight.block) {
            let depth = self.weight.block.min(c_in - start);
            self.transform_inputs(start, depth, inputs);
            for (panel, products) in panels.clone().zip(products.chunks_exact_mut(a_panel)) {
                let weights = if self.transformed.is_empty() {
                    let weights = weights.get(self.weight.elements(depth));
                    self.weight.transform(panel, start, taps, weights);
                    weights
                } else {
                    let first = panel * self.weight.elements(c_in) + self.weight.elements(start);
                    &self.transformed[first..][..self.weight.elements(depth)]
                };
                for (position, products) in products.chunks_exact_mut(count * PANEL).enumerate() {
                    let rows = &inputs[position / POSITIONS_A_ROW * count * STRIDE..][..count * STRIDE];
                    let rows = &rows[position % POSITIONS_A_ROW * DEPTH..];
                    let weights = &weights[position * (depth * PANEL + GAP)..][..depth * PANEL];
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

    /// Writes some channels of all tiles, transformed, into rows of eight positions each: the first eight positions of all
    /// tiles, then the next.
    fn transform_inputs(&self, start: usize, depth: usize, inputs: &mut [u32]) {
        let (size, zeros) = (self.grid.size, [T::ZERO; 2 * DEPTH]);
        let rows = self.tiles.len() * STRIDE;
        for (i, tile) in self.tiles.clone().enumerate() {
            let place = self.grid.place(tile);
            let words = inputs
                .chunks_exact_mut(rows)
                .flat_map(|rows| rows[i * STRIDE..][..POSITIONS_A_ROW * DEPTH].chunks_exact_mut(DEPTH).map(elements));
            let mut positions: Targets<'_, W> = Targets::new(size.positions(), depth, words);
            let mut done = 0;
            while done < depth {
                let (part, from) = Part::of(self.x, start + done);
                let channels = done..depth.min(done + part.channels - from);
                let pixels = self.pixels(part, place, from, &zeros[..channels.len()]);
                size.input(&pixels, &mut positions.part(channels.clone()));
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
    ) -> Sources<'a, T> {
        let Shapes { h, w, pad_top, .. } = self.shapes;
        let (out, side) = (self.grid.size.out(), self.grid.size.inputs());
        let (top, left) = ((i * out).wrapping_sub(pad_top), (j * out).wrapping_sub(self.config.pad_before));
        if top < h && top + side <= h && left < w && left + side <= w {
            let first = ((image * h + top) * w + left) * part.channels + from;
            return Sources::inside(side, zeros.len(), part.values, first, [w * part.channels, part.channels]);
        }
        Sources::new(side * side, zeros.len(), |position| {
            let row = (i * out + position / side).wrapping_sub(pad_top);
            let column = (j * out + position % side).wrapping_sub(self.config.pad_before);
            if row < h && column < w {
                &part.values[((image * h + row) * w + column) * part.channels + from..][..zeros.len()]
            } else {
                zeros
            }
        })
    }

    fn finish(&self, panels: Range<usize>, products: &[f32], epilogue: &Epilogue<'_, T>) {
        let Shapes { h_out, w_out, c_out, .. } = self.shapes;
        let (size, count) = (self.grid.size, self.tiles.len());
        let (out, positions) = (size.out(), size.positions());
        for (panel, products) in panels.zip(products.chunks_exact(positions * count * PANEL)) {
            let columns = panel * PANEL..((panel + 1) * PANEL).min(c_out);
            for (k, tile) in self.tiles.clone().enumerate() {
                let (image, i, j) = self.grid.place(tile);
                let pixels: [_; MOST_OUTPUTS] = std::array::from_fn(|position| {
                    let (row, column) = (i * out + position / out, j * out + position % out);
                    let is_inside = position < out * out && row < h_out && column < w_out;
                    is_inside.then_some((image * h_out + row) * w_out + column)
                });
                let of_tile = |position: usize| &products[(position * count + k) * PANEL..];
                let whole = columns.start..columns.end - columns.len() % LANES;
                size.output(&Sources::new(positions, whole.len(), of_tile), &epilogue.tile(pixels, whole.clone()));
                if whole.end < columns.end {
                    let rest = |position: usize| &of_tile(position)[whole.len()..];
                    let mut values = [[0f32; LANES]; MOST_OUTPUTS];
                    size.output(&Sources::new(positions, LANES, rest), &TileEpilogue::sums(&mut values));
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
