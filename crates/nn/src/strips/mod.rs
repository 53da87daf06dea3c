//! Feature maps that are processed strip by strip, so that few of them are ever whole.
//!
//! [`Strips`] returns a map's rows from first to last, some at a time: those of a map in memory ([`Stored`]), or those
//! of a convolution of another map's strips ([`Convolved`]). Strips can be chained, so that no map of a chain of layers
//! is whole. A convolution keeps the few rows that the next strip also reads, so nothing is computed twice in a pass. A
//! normalization needs a pass before that, for its statistics ([`moments`]).
//!
//! On the CPU the values are bit-identical to those of the whole map, for any size of the strips.

mod cascade;
mod convolved;
mod window;

use std::ops::Range;

use kiln_ops::STRIP_ROWS;

pub use cascade::{Cascade, CascadeLayer};
pub use convolved::{Convolved, Prepare};

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::norm::{MapNorm, PixelNorm};
use crate::tensor::{Moments, TensorLike};

/// A map's rows, strip by strip.
pub trait Strips<T: TensorLike> {
    /// Height, width and channels of the whole map.
    fn shape(&self) -> [usize; 3];

    /// The next rows, `(1, n, w, c)`; `None` at the end.
    fn next(&mut self) -> Result<Option<T>>;

    /// A new map `(1, h, w, c)` of the same type on the same device, with uninitialized pixels.
    fn new_empty(&self, shape: [usize; 3]) -> Result<T>;
}

impl<T: TensorLike, S: Strips<T> + ?Sized> Strips<T> for Box<S> {
    fn shape(&self) -> [usize; 3] {
        (**self).shape()
    }

    fn next(&mut self) -> Result<Option<T>> {
        (**self).next()
    }

    fn new_empty(&self, shape: [usize; 3]) -> Result<T> {
        (**self).new_empty(shape)
    }
}

/// Height, width and channels of a feature map of one image, `(1, h, w, c)`, or of some rows of one.
pub fn size<T: TensorLike>(map: &T) -> [usize; 3] {
    match *map.dims() {
        [.., h, w, c] => [h, w, c],
        _ => [0; 3],
    }
}

/// The end of a strip of a map with `height` rows, of which the first `ready` can be computed: all rows, or a multiple of
/// [`STRIP_ROWS`], where the next strip begins.
fn strip_end(ready: usize, height: usize) -> usize {
    if ready == height { height } else { ready / STRIP_ROWS * STRIP_ROWS }
}

/// The number of rows in strips of `pixels` pixels of a map with width `w`: a multiple of [`STRIP_ROWS`], where strips of
/// convolutions begin.
pub fn rows_of_strip(pixels: usize, w: usize) -> usize {
    (pixels / w.max(1) / STRIP_ROWS * STRIP_ROWS).max(STRIP_ROWS)
}

/// The strips of a map in memory, as views. Rows that were returned may be overwritten.
pub struct Stored<'a, T> {
    map: &'a T,
    rows: usize,
    next: usize,
}

impl<'a, T: TensorLike> Stored<'a, T> {
    /// `map` `(1, h, w, c)`, `rows` rows at a time.
    pub fn new(map: &'a T, rows: usize) -> Self {
        Self { map, rows, next: 0 }
    }
}

impl<T: TensorLike> Strips<T> for Stored<'_, T> {
    fn shape(&self) -> [usize; 3] {
        size(self.map)
    }

    fn next(&mut self) -> Result<Option<T>> {
        let start = self.next;
        self.next = (start + self.rows).min(self.shape()[0]);
        (start < self.next).then(|| self.map.rows(start..self.next)).transpose()
    }

    fn new_empty(&self, [h, w, c]: [usize; 3]) -> Result<T> {
        self.map.new_empty(&[1, h, w, c])
    }
}

/// Strips with another number of rows at a time, which the caller chooses.
pub struct Rechunked<S, T> {
    strips: S,
    /// The rest of the last strip, if any.
    rest: Option<T>,
}

impl<T: TensorLike, S: Strips<T>> Rechunked<S, T> {
    /// All rows of `strips`.
    pub fn new(strips: S) -> Self {
        Self { strips, rest: None }
    }

    /// The next `n` rows, or the remaining ones.
    pub fn take(&mut self, n: usize) -> Result<T> {
        let [h, w, c] = self.strips.shape();
        let taken = self.strips.new_empty([n.min(h), w, c])?;
        let mut done = 0;
        while done < n {
            let Some(strip) = self.rest.take().map_or_else(|| self.strips.next(), |rest| Ok(Some(rest)))? else {
                break;
            };
            let [rows, ..] = size(&strip);
            let used = rows.min(n - done);
            taken.slice_set(&strip.rows(0..used)?, 1, done)?;
            self.rest = (used < rows).then(|| strip.rows(used..rows)).transpose()?;
            done += used;
        }
        taken.rows(0..done)
    }
}

/// A normalization whose statistics are known.
pub enum Normalization<'a, T: TensorLike> {
    /// By statistics of the whole map.
    Group(T::Statistics),
    /// By the channels of each pixel.
    Pixel(&'a PixelNorm),
}

/// The statistics of a map in strips, which takes one pass over it if the normalization has any.
pub fn moments<'a, T: TensorLike>(norm: &'a MapNorm, mut strips: impl Strips<T>) -> Result<Normalization<'a, T>> {
    let norm = match norm {
        MapNorm::Group(norm) => norm,
        MapNorm::Pixel(norm) => return Ok(Normalization::Pixel(norm)),
    };
    let mut moments = norm.moments::<T>();
    while let Some(strip) = strips.next()? {
        moments.add(&strip)?;
    }
    Ok(Normalization::Group(norm.statistics::<T>(moments)?))
}

/// The statistics of a map in memory.
pub fn statistics<'a, T: TensorLike>(norm: &'a MapNorm, map: &T) -> Result<Normalization<'a, T>> {
    let norm = match norm {
        MapNorm::Group(norm) => norm,
        MapNorm::Pixel(norm) => return Ok(Normalization::Pixel(norm)),
    };
    let mut moments = norm.moments::<T>();
    moments.add(map)?;
    Ok(Normalization::Group(norm.statistics::<T>(moments)?))
}

/// All strips as a map in memory.
pub fn collect<T: TensorLike, S: Strips<T>>(mut strips: Convolved<'_, S, T>) -> Result<T> {
    let map = strips.new_empty(strips.shape())?;
    while strips.next_into(Some(&map))?.is_some() {}
    Ok(map)
}

/// The normalization and convolution of `map`, in strips of about `pixels` pixels: only it and the output are whole.
pub fn normalise_and_convolve<T: TensorLike>(norm: &MapNorm, conv: &Conv2d, map: &T, pixels: usize) -> Result<T> {
    let statistics = statistics(norm, map)?;
    let strips = Stored::new(map, rows_of_strip(pixels, size(map)[1]));
    collect(Convolved::new(strips, Prepare::Normalize(&statistics), conv))
}

/// A source of the rows that are added to a convolution's output.
pub type Residual<'a, T> = Box<dyn FnMut(Range<usize>) -> Result<T> + 'a>;
