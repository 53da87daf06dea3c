//! The blocks of RRDBNet, in strips.

use kiln_nn::ops::Slope;
use kiln_nn::strips::{Cascade, CascadeLayer, Stored, Strips};
use kiln_nn::{Conv2d, Result, TensorLike};
use kiln_weights::ParamBuilder;

/// The slope of LeakyReLU in the whole network.
pub(crate) const SLOPE: f32 = 0.2;
/// The factor of a block's result before its input is added.
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

    /// The convolutions with what follows them. `outer` is the input of the three blocks, where this is the last of them.
    fn layers<'a, T>(&'a self, outer: Option<&'a T>) -> Vec<CascadeLayer<'a, T>> {
        let layer = |(i, conv)| {
            let layer = CascadeLayer { reads: 0..i + 1, ..CascadeLayer::next(conv, i, Slope::Constant(SLOPE)) };
            if i + 1 < CONVS {
                return layer;
            }
            let (scale, input_factor) = match outer {
                // 0.2 (0.2 y + input) + outer
                Some(_) => (RESIDUAL_SCALE * RESIDUAL_SCALE, Some(RESIDUAL_SCALE)),
                None => (RESIDUAL_SCALE, Some(1.0)),
            };
            CascadeLayer { scale, input_factor, map: outer, slope: Slope::Linear, ..layer }
        };
        self.convs.iter().enumerate().map(layer).collect()
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
    /// rows that were read, since it depends on them, and windows between the blocks hold those that are still needed.
    pub(crate) fn forward_in_place<T: TensorLike>(&self, x: &T, rows: usize) -> Result<()> {
        let [first, second, third] = &self.dense;
        let hidden = Cascade::new(Stored::new(x, rows), first.layers(None));
        let hidden = Cascade::new(hidden, second.layers(None));
        let mut y = Cascade::new(hidden, third.layers(Some(x)));
        loop {
            let first = y.done();
            let Some(strip) = y.next()? else { return Ok(()) };
            x.slice_set(&strip, 1, first)?;
        }
    }
}
