//! Several convolutions of one size in strips, among which any may read the results of any before.

use std::ops::Range;

use kiln_ops::{Conv2dEpilogue, Slope, Strip};

use super::window::Window;
use super::{Strips, size, strip_end};
use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::tensor::TensorLike;

/// A convolution of a [`Cascade`], which keeps the size of its input.
pub struct CascadeLayer<'a, T> {
    /// The convolution.
    pub conv: &'a Conv2d,
    /// Whose channels it reads, one after another: 0 is the input of the cascade, `i` the result of layer `i - 1`.
    pub reads: Range<usize>,
    /// The result is multiplied by this.
    pub scale: f32,
    /// The factor with which the input of the cascade is added.
    pub input_factor: Option<f32>,
    /// A map of the size of the result that is added. Rows that were given may be overwritten.
    pub map: Option<&'a T>,
    /// The activation, applied last.
    pub slope: Slope<'a, T>,
}

impl<'a, T> CascadeLayer<'a, T> {
    /// The convolution of the result of the layer before, number `index` being this one's.
    pub fn next(conv: &'a Conv2d, index: usize, slope: Slope<'a, T>) -> Self {
        Self { conv, reads: index..index + 1, scale: 1.0, input_factor: None, map: None, slope }
    }
}

/// The strips of the last layer.
///
/// Every layer computes the rows for which it has all that it reads, so each lags up to [`kiln_ops::STRIP_ROWS`] rows behind the one before it,
/// and no row is computed twice. Windows hold the rows that some layer still reads.
pub struct Cascade<'a, S, T> {
    source: S,
    layers: Vec<CascadeLayer<'a, T>>,
    /// Rows of the input and of the results of all layers but the last.
    windows: Vec<Window<T>>,
    /// Rows of the result that were given.
    done: usize,
}

impl<'a, T: TensorLike, S: Strips<T>> Cascade<'a, S, T> {
    /// The strips of `layers` over `source`.
    pub fn new(source: S, layers: Vec<CascadeLayer<'a, T>>) -> Self {
        let windows = layers.iter().map(|_| Window::default()).collect();
        Self { source, layers, windows, done: 0 }
    }

    /// Rows of the result that were given.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Rows of the result of layer `i` that were computed.
    fn computed(&self, i: usize) -> usize {
        self.windows.get(i + 1).map_or(self.done, Window::end)
    }

    /// The rows that layer `i` can compute next: none, or some from a multiple of [`kiln_ops::STRIP_ROWS`] on.
    fn ready(&self, i: usize) -> Option<Strip> {
        let ([height, ..], layer) = (self.source.shape(), &self.layers[i]);
        let seen = self.windows[layer.reads.clone()].iter().map(Window::end).min().unwrap_or(0);
        let ready = layer.conv.rows_ready(seen, height);
        let end = strip_end(ready, height);
        (end > self.computed(i)).then(|| Strip { height, rows: self.computed(i)..end })
    }

    /// Rows of the result of layer `i`.
    fn compute(&self, i: usize, strip: &Strip) -> Result<T> {
        let layer = &self.layers[i];
        let read = layer.conv.input_rows(strip);
        let windows = self.windows[layer.reads.clone()].iter();
        let parts = windows.map(|window| window.rows(read.clone())).collect::<Result<Vec<_>>>()?;
        let input = layer.input_factor.map(|_| self.windows[0].rows(strip.rows.clone())).transpose()?;
        let map = layer.map.map(|map| map.rows(strip.rows.clone())).transpose()?;
        let addends = [layer.input_factor.zip(input.as_ref()), map.as_ref().map(|map| (1.0, map))];
        let epilogue = Conv2dEpilogue { scale: layer.scale, addends, slope: layer.slope };
        layer.conv.forward_fused(&parts.iter().collect::<Vec<_>>(), epilogue, Some(strip), None)
    }

    /// Drops what no layer reads any more.
    fn drop_unread(&mut self) -> Result<()> {
        let [height, ..] = self.source.shape();
        for index in 0..self.windows.len() {
            let mut first = self.windows[index].end();
            for (i, layer) in self.layers.iter().enumerate().filter(|(i, _)| self.computed(*i) < height) {
                let next = Strip { height, rows: self.computed(i)..height };
                if layer.reads.contains(&index) {
                    first = first.min(layer.conv.input_rows(&next).start);
                }
                if index == 0 && layer.input_factor.is_some() {
                    first = first.min(next.rows.start);
                }
            }
            self.windows[index].drop_before(first)?;
        }
        Ok(())
    }
}

impl<T: TensorLike, S: Strips<T>> Strips<T> for Cascade<'_, S, T> {
    fn shape(&self) -> [usize; 3] {
        let [h, w, c] = self.source.shape();
        self.layers.last().map_or([h, w, c], |layer| layer.conv.output_shape([h, w]))
    }

    fn next(&mut self) -> Result<Option<T>> {
        while let Some(strip) = self.source.next()? {
            let Some(last) = self.layers.len().checked_sub(1) else { return Ok(Some(strip)) };
            self.windows[0].push(strip)?;
            for i in 0..last {
                if let Some(strip) = self.ready(i) {
                    let y = self.compute(i, &strip)?;
                    self.windows[i + 1].push(y)?;
                }
            }
            let y = self.ready(last).map(|strip| self.compute(last, &strip)).transpose()?;
            self.done += y.as_ref().map_or(0, |y| size(y)[0]);
            self.drop_unread()?;
            if y.is_some() {
                return Ok(y);
            }
        }
        Ok(None)
    }

    fn new_empty(&self, shape: [usize; 3]) -> Result<T> {
        self.source.new_empty(shape)
    }
}
