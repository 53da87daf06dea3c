//! The strips of a convolution's output.

use std::ops::Range;

use kiln_ops::{Conv2dEpilogue, Slope, Strip};

use super::{Normalization, Residual, Strips, size, strip_end};
use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::tensor::TensorLike;

/// The operation on a map before a convolution.
pub enum Prepare<'a, T: TensorLike> {
    /// Normalization, with its activation.
    Normalize(&'a Normalization<'a, T>),
    /// Nearest-neighbor upsampling by 2.
    Upsample,
    /// The map as it is.
    Keep,
}

/// The output of a convolution of another map's strips, in strips.
///
/// A prepared strip of the source is appended to a window, after those rows of the previous strip that are read again.
/// Then all output rows with complete windows are computed. So the output lags some rows behind the source, and may
/// overwrite a map in memory that the source reads.
pub struct Convolved<'a, S, T: TensorLike> {
    source: S,
    prepare: Prepare<'a, T>,
    conv: &'a Conv2d,
    residual: Option<Residual<'a, T>>,
    slope: Slope<'a, T>,
    /// The rows of the prepared map, up to `seen`, that are still needed.
    kept: Option<T>,
    /// The number of rows of the prepared map that were in a window.
    seen: usize,
    /// The number of output rows so far.
    done: usize,
}

impl<'a, T: TensorLike, S: Strips<T>> Convolved<'a, S, T> {
    /// The convolution `conv` of `source` after `prepare`.
    pub fn new(source: S, prepare: Prepare<'a, T>, conv: &'a Conv2d) -> Self {
        Self { source, prepare, conv, residual: None, slope: Slope::Linear, kept: None, seen: 0, done: 0 }
    }

    /// Adds the rows that `residual` returns to the output rows. It is called for all rows in order, once each.
    pub fn plus(self, residual: impl FnMut(Range<usize>) -> Result<T> + 'a) -> Self {
        Self { residual: Some(Box::new(residual)), ..self }
    }

    /// Applies a piecewise linear activation to the sums with the residual.
    pub fn activated(self, slope: Slope<'a, T>) -> Self {
        Self { slope, ..self }
    }

    /// The number of output rows so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// The next strip. It is also written to its rows of `map`, the whole output, if that is given.
    pub fn next_into(&mut self, map: Option<&T>) -> Result<Option<T>> {
        let (height, rows) = (self.prepared()[0], self.shape()[0]);
        while self.done < rows {
            let Some((window, first)) = self.window()? else { break };
            let ready = self.conv.rows_ready(self.seen, height);
            let end = strip_end(ready, rows);
            let y = if end > self.done { Some(self.convolve(&window, first, self.done..end, map)?) } else { None };
            self.done = self.done.max(end);
            let next = Strip { height, rows: self.done..rows };
            let unread = self.conv.input_rows(&next).start.clamp(first, self.seen);
            self.kept =
                (self.done < rows).then(|| window.rows(unread - first..self.seen - first)?.copy()).transpose()?;
            if y.is_some() {
                return Ok(y);
            }
        }
        Ok(None)
    }

    /// The source's shape after preparation.
    fn prepared(&self) -> [usize; 3] {
        let [h, w, c] = self.source.shape();
        match self.prepare {
            Prepare::Normalize(_) | Prepare::Keep => [h, w, c],
            Prepare::Upsample => [2 * h, 2 * w, c],
        }
    }

    /// The prepared window of stored rows and the next strip, with the index of its first row; `None` after the last
    /// row.
    fn window(&mut self) -> Result<Option<(T, usize)>> {
        let Some(strip) = self.source.next()? else { return Ok(None) };
        let ([height, w, c], [rows, ..]) = (self.prepared(), size(&strip));
        let new = rows * height / self.source.shape()[0].max(1);
        let kept = self.kept.take();
        if let (None, Prepare::Keep) = (&kept, &self.prepare) {
            self.seen += new;
            return Ok(Some((strip, self.seen - new)));
        }
        let old = kept.as_ref().map_or(0, |kept| size(kept)[0]);
        let window = self.source.new_empty([old + new, w, c])?;
        if let Some(kept) = &kept {
            window.slice_set(kept, 1, 0)?;
        }
        let place = window.rows(old..old + new)?;
        match &self.prepare {
            Prepare::Normalize(Normalization::Group(statistics)) => strip.group_norm_apply(statistics, Some(&place))?,
            Prepare::Normalize(Normalization::Pixel(norm)) => {
                window.slice_set(&norm.forward(&strip)?, 1, old)?;
                place
            }
            Prepare::Upsample => strip.upsample_nearest((new, w), Some(&place))?,
            Prepare::Keep => {
                window.slice_set(&strip, 1, old)?;
                place
            }
        };
        let first = self.seen - old;
        self.seen += new;
        Ok(Some((window, first)))
    }

    /// Output rows `rows`, from a window that begins at row `first`.
    fn convolve(&mut self, window: &T, first: usize, rows: Range<usize>, map: Option<&T>) -> Result<T> {
        let out = map.map(|map| map.rows(rows.clone())).transpose()?;
        let residual = self.residual.as_mut().map(|residual| residual(rows.clone())).transpose()?;
        let strip = Strip { height: self.prepared()[0], rows };
        let read = self.conv.input_rows(&strip);
        let x = window.rows(read.start - first..read.end - first)?;
        if let Slope::Linear = self.slope {
            return self.conv.forward_strip(&x, &strip, residual.as_ref(), out.as_ref());
        }
        let addends = [residual.as_ref().map(|residual| (1.0, residual)), None];
        let epilogue = Conv2dEpilogue { addends, slope: self.slope, ..Conv2dEpilogue::default() };
        self.conv.forward_fused(&[&x], epilogue, Some(&strip), out.as_ref())
    }
}

impl<T: TensorLike, S: Strips<T>> Strips<T> for Convolved<'_, S, T> {
    fn shape(&self) -> [usize; 3] {
        let [h, w, _] = self.prepared();
        self.conv.output_shape([h, w])
    }

    fn next(&mut self) -> Result<Option<T>> {
        self.next_into(None)
    }

    fn new_empty(&self, shape: [usize; 3]) -> Result<T> {
        self.source.new_empty(shape)
    }
}
