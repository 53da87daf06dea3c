//! The blocks of RRDBNet, in strips.

use kiln_nn::ops::{Conv2dEpilogue, Slope, Strip};
use kiln_nn::strips::{Stored, Strips, Window, size};
use kiln_nn::{Conv2d, Result, TensorLike};
use kiln_weights::ParamBuilder;

/// The slope of LeakyReLU in the whole network.
pub(crate) const SLOPE: f32 = 0.2;
/// What a block computes is multiplied by this before its input is added.
const RESIDUAL_SCALE: f32 = 0.2;
/// Convolutions of a dense block.
const CONVS: usize = 5;

/// Five convolutions, each of the block's input and the results of all before it.
struct DenseBlock {
    convs: [Conv2d; CONVS],
}

impl DenseBlock {
    fn new(p: &ParamBuilder<'_>, features: usize, growth: usize) -> Self {
        let conv = |i: usize| {
            let out_channels = if i + 1 == CONVS { features } else { growth };
            Conv2d::new(&p.pp(format!("conv{}", i + 1)), features + i * growth, out_channels, 3)
        };
        Self { convs: std::array::from_fn(conv) }
    }
}

/// Three dense blocks, and the input added: an RRDB.
pub(crate) struct Block {
    dense: [DenseBlock; 3],
}

impl Block {
    pub(crate) fn new(p: &ParamBuilder<'_>, features: usize, growth: usize) -> Self {
        Self { dense: [1, 2, 3].map(|i| DenseBlock::new(&p.pp(format!("rdb{i}")), features, growth)) }
    }

    /// The block of `x` `(1, h, w, features)`, which the result overwrites, in strips of `rows` rows.
    ///
    /// The last dense block writes rows that the first has read long before: a strip of the result lags 30 rows behind the
    /// rows that were read, since it depends on them, and the windows between the blocks hold those that are still needed.
    pub(crate) fn forward_in_place<T: TensorLike>(&self, x: &T, rows: usize) -> Result<()> {
        let [first, second, third] = &self.dense;
        let hidden = DenseStrips::new(DenseStrips::new(Stored::new(x, rows), first, None), second, None);
        let mut y = DenseStrips::new(hidden, third, Some(x));
        loop {
            let first = y.done;
            let Some(strip) = y.next()? else { return Ok(()) };
            x.slice_set(&strip, 1, first)?;
        }
    }
}

/// The strips of a dense block of another map's strips.
///
/// Every convolution computes the rows for which it has all that it reads, so each lags one or two rows behind the one
/// before it, and no row is computed twice.
struct DenseStrips<'a, S, T> {
    source: S,
    block: &'a DenseBlock,
    /// The input of the three blocks, where this is the last of them.
    outer: Option<&'a T>,
    /// Rows of the block's input and of the results of all convolutions but the last.
    windows: [Window<T>; CONVS],
    /// Rows of the result that were given.
    done: usize,
}

impl<'a, T: TensorLike, S: Strips<T>> DenseStrips<'a, S, T> {
    fn new(source: S, block: &'a DenseBlock, outer: Option<&'a T>) -> Self {
        Self { source, block, outer, windows: std::array::from_fn(|_| Window::default()), done: 0 }
    }

    /// The rows that convolution `i` can compute beyond the `done` first ones: none, or some from an even row on.
    fn ready(&self, i: usize, done: usize) -> Option<Strip> {
        let [height, ..] = self.source.shape();
        let ready = self.block.convs[i].rows_ready(self.windows[i].end(), height);
        let end = if ready == height { ready } else { ready / 2 * 2 };
        (end > done).then_some(Strip { height, rows: done..end })
    }

    /// Rows of the result of convolution `i`, activated, or with the residuals where it is the last.
    fn convolve(&self, i: usize, strip: &Strip) -> Result<T> {
        let conv = &self.block.convs[i];
        let read = conv.input_rows(strip);
        let parts = self.windows[..=i].iter().map(|window| window.rows(read.clone())).collect::<Result<Vec<_>>>()?;
        let views: Vec<&T> = parts.iter().collect();
        if i + 1 < CONVS {
            let epilogue = Conv2dEpilogue { slope: Slope::Constant(SLOPE), ..Conv2dEpilogue::default() };
            return conv.forward_fused(&views, epilogue, Some(strip), None);
        }
        let input = self.windows[0].rows(strip.rows.clone())?;
        let outer = self.outer.map(|outer| outer.rows(strip.rows.clone())).transpose()?;
        let (scale, addends) = match &outer {
            // 0.2 (0.2 y + input) + outer
            Some(outer) => (RESIDUAL_SCALE * RESIDUAL_SCALE, [Some((RESIDUAL_SCALE, &input)), Some((1.0, outer))]),
            None => (RESIDUAL_SCALE, [Some((1.0, &input)), None]),
        };
        conv.forward_fused(&views, Conv2dEpilogue { scale, addends, slope: Slope::Linear }, Some(strip), None)
    }
}

impl<T: TensorLike, S: Strips<T>> Strips<T> for DenseStrips<'_, S, T> {
    fn shape(&self) -> [usize; 3] {
        self.source.shape()
    }

    fn next(&mut self) -> Result<Option<T>> {
        while let Some(strip) = self.source.next()? {
            self.windows[0].push(strip)?;
            for i in 0..CONVS - 1 {
                if let Some(strip) = self.ready(i, self.windows[i + 1].end()) {
                    let y = self.convolve(i, &strip)?;
                    self.windows[i + 1].push(y)?;
                }
            }
            let Some(strip) = self.ready(CONVS - 1, self.done) else { continue };
            let y = self.convolve(CONVS - 1, &strip)?;
            self.done += size(&y)[0];
            let unread = match self.done == self.shape()[0] {
                true => self.done,
                false => self.done.saturating_sub(1), // the row above the next strip
            };
            self.windows.iter_mut().try_for_each(|window| window.drop_before(unread))?;
            return Ok(Some(y));
        }
        Ok(None)
    }

    fn new_empty(&self, shape: [usize; 3]) -> Result<T> {
        self.source.new_empty(shape)
    }
}
