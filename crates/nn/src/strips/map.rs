//! What strips are made of: tensors, or the shadows of a dry run.

use std::ops::Range;

use candle_core::Tensor;
use kiln_ops::{GroupNormMoments, GroupNormStatistics, Strip, group_norm_apply, unwritten, upsample_nearest};
use kiln_weights::Staged;

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::norm::GroupNorm;
use crate::run::Run;
use crate::shadow::Shadow;

/// A feature map of one image, `(1, h, w, c)`, or some rows of one: a [`Tensor`], or a [`Shadow`], with which the same
/// code tells how much memory it takes.
pub trait Map: Sized {
    /// Group norm's sums.
    type Moments;
    /// What group norm knows once it has all sums.
    type Statistics;

    /// Runs a staged module; a dry run needs no weights.
    fn run<L, T>(staged: &Staged<L>, f: impl FnOnce(&L) -> Result<T>) -> Result<T>;

    /// Height, width and channels.
    fn shape(&self) -> [usize; 3];

    /// Another map of the same type on the same device, which holds anything.
    fn unwritten(&self, shape: [usize; 3]) -> Result<Self>;

    /// Some rows: the same memory.
    fn rows(&self, rows: Range<usize>) -> Result<Self>;

    /// The same in memory of its own.
    fn copy(&self) -> Result<Self> {
        let copy = self.unwritten(self.shape())?;
        copy.put(0, self)?;
        Ok(copy)
    }

    /// Overwrites rows from `first` on with `rows`, of a map with memory of its own.
    fn put(&self, first: usize, rows: &Self) -> Result<()>;

    /// Sums of no pixels.
    fn moments(norm: &GroupNorm) -> Self::Moments;

    /// Adds all pixels, the next of their map, to its sums.
    fn add_to(&self, moments: &mut Self::Moments, norm: &GroupNorm) -> Result<()>;

    /// What `norm` makes of the sums of all pixels.
    fn statistics(norm: &GroupNorm, moments: Self::Moments) -> Result<Self::Statistics>;

    /// Writes the pixels, normalised, to `out`.
    fn normalise_into(&self, statistics: &Self::Statistics, out: &Self) -> Result<()>;

    /// Writes the pixels, each four times, to `out`, of twice the height and width.
    fn upsample_into(&self, out: &Self) -> Result<()>;

    /// [`Conv2d::forward`].
    fn convolve(&self, conv: &Conv2d) -> Result<Self>;

    /// [`Conv2d::forward_strip`].
    fn convolve_strip(&self, conv: &Conv2d, strip: &Strip, residual: Option<&Self>, out: Option<Self>) -> Result<Self>;
}

impl Map for Tensor {
    type Moments = GroupNormMoments;
    type Statistics = GroupNormStatistics;

    fn run<L, T>(staged: &Staged<L>, f: impl FnOnce(&L) -> Result<T>) -> Result<T> {
        Run::run(staged, f)
    }

    fn shape(&self) -> [usize; 3] {
        match *self.dims() {
            [.., h, w, c] => [h, w, c],
            _ => [0; 3],
        }
    }

    fn unwritten(&self, [h, w, c]: [usize; 3]) -> Result<Self> {
        Ok(unwritten(&[1, h, w, c], self.dtype(), self.device())?)
    }

    fn rows(&self, rows: Range<usize>) -> Result<Self> {
        Ok(self.narrow(1, rows.start, rows.len())?)
    }

    fn put(&self, first: usize, rows: &Self) -> Result<()> {
        Ok(self.slice_set(rows, 1, first)?)
    }

    fn moments(norm: &GroupNorm) -> Self::Moments {
        norm.moments()
    }

    fn add_to(&self, moments: &mut Self::Moments, _norm: &GroupNorm) -> Result<()> {
        Ok(moments.add(self)?)
    }

    fn statistics(norm: &GroupNorm, moments: Self::Moments) -> Result<Self::Statistics> {
        norm.statistics(moments)
    }

    fn normalise_into(&self, statistics: &Self::Statistics, out: &Self) -> Result<()> {
        group_norm_apply(self, statistics, Some(out))?;
        Ok(())
    }

    fn upsample_into(&self, out: &Self) -> Result<()> {
        let [h, w, _] = Map::shape(out);
        upsample_nearest(self, (h, w), Some(out))?;
        Ok(())
    }

    fn convolve(&self, conv: &Conv2d) -> Result<Self> {
        conv.forward(self)
    }

    fn convolve_strip(&self, conv: &Conv2d, strip: &Strip, residual: Option<&Self>, out: Option<Self>) -> Result<Self> {
        conv.forward_strip(self, strip, residual, out.as_ref())
    }
}

impl Map for Shadow {
    type Moments = ();
    type Statistics = ();

    fn run<L, T>(staged: &Staged<L>, f: impl FnOnce(&L) -> Result<T>) -> Result<T> {
        f(staged.module())
    }

    fn shape(&self) -> [usize; 3] {
        [self.dim(1), self.dim(2), self.dim(3)]
    }

    fn unwritten(&self, [h, w, c]: [usize; 3]) -> Result<Self> {
        Ok(self.another(&[1, h, w, c]))
    }

    fn rows(&self, rows: Range<usize>) -> Result<Self> {
        Ok(self.view(&[1, rows.len(), self.dim(2), self.dim(3)]))
    }

    fn put(&self, _first: usize, _rows: &Self) -> Result<()> {
        Ok(())
    }

    fn moments(_norm: &GroupNorm) -> Self::Moments {}

    fn add_to(&self, _moments: &mut Self::Moments, norm: &GroupNorm) -> Result<()> {
        norm.shadow_moments(self);
        Ok(())
    }

    fn statistics(_norm: &GroupNorm, _moments: Self::Moments) -> Result<Self::Statistics> {
        Ok(())
    }

    fn normalise_into(&self, _statistics: &Self::Statistics, _out: &Self) -> Result<()> {
        Ok(())
    }

    fn upsample_into(&self, _out: &Self) -> Result<()> {
        Ok(())
    }

    fn convolve(&self, conv: &Conv2d) -> Result<Self> {
        Ok(conv.shadow(self))
    }

    fn convolve_strip(
        &self,
        conv: &Conv2d,
        strip: &Strip,
        _residual: Option<&Self>,
        out: Option<Self>,
    ) -> Result<Self> {
        let [_, w, c] = conv.output_shape([strip.height, self.dim(2)]);
        let y = out.unwrap_or_else(|| self.another(&[1, strip.rows.len(), w, c]));
        conv.shadow_strip(self, strip);
        Ok(y)
    }
}
