//! A residual block in strips: without time embedding, one image at a time.

use std::ops::Range;

use crate::error::Result;
use crate::resnet::ResnetBlock;
use crate::strips::{Convolved, Dealt, Prepare, Stored, Strips, collect, moments, rows_of_strip, size, statistics};
use crate::tensor::TensorLike;

impl ResnetBlock {
    /// What `forward` gives for `x` `(1, h, w, in_channels)`, in strips of about `pixels` pixels. Only `x` and the
    /// result are whole: the first convolution's result is overwritten with the block's.
    pub fn forward_strips<T: TensorLike>(&self, x: &T, pixels: usize) -> Result<T> {
        let norm1 = statistics(&self.first.norm1, x)?;
        let strips = Stored::new(x, rows_of_strip(pixels, size(x)[1]));
        self.forward_over(strips, norm1, |rows| x.rows(rows), pixels)
    }

    /// The same of a map that is never whole: `x` gives its strips, each time anew. That is three times: for
    /// statistics, for the first convolution, and for what is added at the end.
    pub fn forward_strips_of<T: TensorLike, S: Strips<T>>(&self, x: impl Fn() -> S, pixels: usize) -> Result<T> {
        let norm1 = moments(&self.first.norm1, x())?;
        let mut added = Dealt::new(x());
        self.forward_over(x(), norm1, |rows| added.take(rows.len()), pixels)
    }

    /// The same over `x` itself, which the result overwrites: nothing else is whole, and the first convolution is
    /// computed twice, once for statistics. Where channels change, that is [`ResnetBlock::forward_strips`].
    pub fn forward_in_place<T: TensorLike>(&self, x: T, pixels: usize) -> Result<T> {
        if self.second.conv_shortcut.is_some() {
            return self.forward_strips(&x, pixels);
        }
        let rows = rows_of_strip(pixels, size(&x)[1]);
        let norm1 = statistics(&self.first.norm1, &x)?;
        let hidden = || Convolved::new(Stored::new(&x, rows), Prepare::Normalise(&norm1), &self.first.conv1);
        let norm2 = moments(&self.second.norm2, hidden())?;
        let mut y = Convolved::new(hidden(), Prepare::Normalise(&norm2), &self.second.conv2).plus(|rows| x.rows(rows));
        loop {
            let first = y.done();
            let Some(strip) = y.next()? else { break };
            x.slice_set(&strip, 1, first)?; // rows that were read
        }
        drop(y);
        Ok(x)
    }

    /// The block over `x` once the first statistics are known; `added` gives rows of `x`.
    fn forward_over<T: TensorLike>(
        &self,
        x: impl Strips<T>,
        norm1: T::Statistics,
        mut added: impl FnMut(Range<usize>) -> Result<T>,
        pixels: usize,
    ) -> Result<T> {
        let h = collect(Convolved::new(x, Prepare::Normalise(&norm1), &self.first.conv1))?;
        let norm2 = statistics(&self.second.norm2, &h)?;
        let strips = Stored::new(&h, rows_of_strip(pixels, size(&h)[1]));
        let mut y = Convolved::new(strips, Prepare::Normalise(&norm2), &self.second.conv2).plus(|rows| {
            let x = added(rows)?;
            match &self.second.conv_shortcut {
                Some(conv) => conv.forward(&x),
                None => Ok(x),
            }
        });
        while y.next_into(Some(&h))?.is_some() {} // behind the rows that are read
        drop(y);
        Ok(h)
    }
}
