//! A residual block in strips: without time embedding, one image at a time.

use std::ops::Range;

use crate::error::Result;
use crate::resnet::ResnetBlock;
use crate::strips::{
    Convolved, Normalization, Prepare, Rechunked, Stored, Strips, collect, moments, rows_of_strip, size, statistics,
};
use crate::tensor::TensorLike;

impl ResnetBlock {
    /// The output of `forward` for `x` `(1, h, w, in_channels)`, in strips of about `pixels` pixels. Only `x` and the
    /// output are whole maps: the block's output overwrites that of the first convolution.
    pub fn forward_strips<T: TensorLike>(&self, x: &T, pixels: usize) -> Result<T> {
        let norm1 = statistics(&self.first.norm1, x)?;
        let strips = Stored::new(x, rows_of_strip(pixels, size(x)[1]));
        self.forward_over(strips, norm1, |rows| x.rows(rows), pixels)
    }

    /// Like [`ResnetBlock::forward_strips`], for a map that is never whole. `x` returns its strips from the start on each
    /// call. It is called three times: for statistics, for the first convolution, and for the residual at the end.
    pub fn forward_strips_of<T: TensorLike, S: Strips<T>>(&self, x: impl Fn() -> S, pixels: usize) -> Result<T> {
        let norm1 = moments(&self.first.norm1, x())?;
        let mut added = Rechunked::new(x());
        self.forward_over(x(), norm1, |rows| added.take(rows.len()), pixels)
    }

    /// Like [`ResnetBlock::forward_strips`], but the output overwrites `x`. There is no other whole map, and the first
    /// convolution is computed twice, once for statistics. If the channels change, this is
    /// [`ResnetBlock::forward_strips`].
    pub fn forward_in_place<T: TensorLike>(&self, x: T, pixels: usize) -> Result<T> {
        if self.second.conv_shortcut.is_some() {
            return self.forward_strips(&x, pixels);
        }
        let rows = rows_of_strip(pixels, size(&x)[1]);
        let norm1 = statistics(&self.first.norm1, &x)?;
        let hidden = || Convolved::new(Stored::new(&x, rows), Prepare::Normalize(&norm1), &self.first.conv1);
        let norm2 = moments(&self.second.norm2, hidden())?;
        let mut y = Convolved::new(hidden(), Prepare::Normalize(&norm2), &self.second.conv2).plus(|rows| x.rows(rows));
        loop {
            let first = y.done();
            let Some(strip) = y.next()? else { break };
            x.slice_set(&strip, 1, first)?; // these rows were already read
        }
        drop(y);
        Ok(x)
    }

    /// Runs the block over `x` after the first statistics; `added` returns rows of `x`.
    fn forward_over<T: TensorLike>(
        &self,
        x: impl Strips<T>,
        norm1: Normalization<'_, T>,
        mut added: impl FnMut(Range<usize>) -> Result<T>,
        pixels: usize,
    ) -> Result<T> {
        let h = collect(Convolved::new(x, Prepare::Normalize(&norm1), &self.first.conv1))?;
        let norm2 = statistics(&self.second.norm2, &h)?;
        let strips = Stored::new(&h, rows_of_strip(pixels, size(&h)[1]));
        let mut y = Convolved::new(strips, Prepare::Normalize(&norm2), &self.second.conv2).plus(|rows| {
            let x = added(rows)?;
            match &self.second.conv_shortcut {
                Some(conv) => conv.forward(&x),
                None => Ok(x),
            }
        });
        while y.next_into(Some(&h))?.is_some() {} // behind the rows that are still read
        drop(y);
        Ok(h)
    }
}
