//! Feature maps that are worked on strip by strip, so that few of them are ever whole.
//!
//! [`Strips`] gives a map's rows from the first to the last, some at a time: those of a map in memory ([`Stored`]), or
//! those that a convolution makes of another map's strips ([`Convolved`]). Strips of strips are chains of layers in
//! which nothing is whole. A convolution keeps the few rows that the next strip reads too, so nothing is computed twice
//! in a pass; a normalisation needs a pass of its own before, for its statistics ([`moments`]).
//!
//! What a strip holds has the bits that it has in the whole map, on the processor, whatever the strips' size.
//! All of it runs with tensors, or for the shapes alone: see [`Map`].

mod convolved;
mod map;

use std::ops::Range;

pub use convolved::{Convolved, Prepare};
pub use map::Map;

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::norm::GroupNorm;

/// A map's rows, strip by strip.
pub trait Strips<M: Map> {
    /// Height, width and channels of the whole map.
    fn shape(&self) -> [usize; 3];

    /// The next rows, `(1, n, w, c)`, an even number unless they are the last; nothing after these.
    fn next(&mut self) -> Result<Option<M>>;

    /// A new map of the same type on the same device, which holds anything.
    fn unwritten(&self, shape: [usize; 3]) -> Result<M>;
}

/// The rows of strips of `pixels` pixels of a map that is `w` wide: even, as convolutions on the processor work.
pub fn rows_of_strip(pixels: usize, w: usize) -> usize {
    (pixels / w.max(1) / 2 * 2).max(2)
}

/// The strips of a map in memory: views of it. Rows that were given may be overwritten.
pub struct Stored<'a, M> {
    map: &'a M,
    rows: usize,
    next: usize,
}

impl<'a, M: Map> Stored<'a, M> {
    /// `map` `(1, h, w, c)`, `rows` rows at a time.
    pub fn new(map: &'a M, rows: usize) -> Self {
        Self { map, rows, next: 0 }
    }
}

impl<M: Map> Strips<M> for Stored<'_, M> {
    fn shape(&self) -> [usize; 3] {
        self.map.shape()
    }

    fn next(&mut self) -> Result<Option<M>> {
        let start = self.next;
        self.next = (start + self.rows).min(self.shape()[0]);
        (start < self.next).then(|| self.map.rows(start..self.next)).transpose()
    }

    fn unwritten(&self, shape: [usize; 3]) -> Result<M> {
        self.map.unwritten(shape)
    }
}

/// Strips dealt out anew: as many rows at a time as one asks for.
pub struct Dealt<S, M> {
    strips: S,
    /// What was not asked for yet, if anything.
    rest: Option<M>,
}

impl<M: Map, S: Strips<M>> Dealt<S, M> {
    /// All rows of `strips`.
    pub fn new(strips: S) -> Self {
        Self { strips, rest: None }
    }

    /// The next `n` rows, or those that are left.
    pub fn take(&mut self, n: usize) -> Result<M> {
        let [h, w, c] = self.strips.shape();
        let taken = self.strips.unwritten([n.min(h), w, c])?;
        let mut done = 0;
        while done < n {
            let Some(strip) = self.rest.take().map_or_else(|| self.strips.next(), |rest| Ok(Some(rest)))? else {
                break;
            };
            let rows = strip.shape()[0];
            let used = rows.min(n - done);
            taken.put(done, &strip.rows(0..used)?)?;
            self.rest = (used < rows).then(|| strip.rows(used..rows)).transpose()?;
            done += used;
        }
        taken.rows(0..done)
    }
}

/// The statistics of a map in strips: a pass over it.
pub fn moments<M: Map>(norm: &GroupNorm, mut strips: impl Strips<M>) -> Result<M::Statistics> {
    let mut moments = M::moments(norm);
    while let Some(strip) = strips.next()? {
        strip.add_to(&mut moments, norm)?;
    }
    M::statistics(norm, moments)
}

/// The statistics of a map in memory.
pub fn statistics<M: Map>(norm: &GroupNorm, map: &M) -> Result<M::Statistics> {
    let mut moments = M::moments(norm);
    map.add_to(&mut moments, norm)?;
    M::statistics(norm, moments)
}

/// All strips as a map in memory.
pub fn collect<M: Map, S: Strips<M>>(mut strips: Convolved<'_, S, M>) -> Result<M> {
    let map = strips.unwritten(strips.shape())?;
    while strips.next_into(Some(&map))?.is_some() {}
    Ok(map)
}

/// `map` normalised and convolved, in strips of about `pixels` pixels: only it and the result are whole.
pub fn normalise_and_convolve<M: Map>(norm: &GroupNorm, conv: &Conv2d, map: &M, pixels: usize) -> Result<M> {
    let statistics = statistics(norm, map)?;
    let strips = Stored::new(map, rows_of_strip(pixels, map.shape()[1]));
    collect(Convolved::new(strips, Prepare::Normalise(&statistics), conv))
}

/// Where the rows that a convolution's result is added to come from.
pub type Residual<'a, M> = Box<dyn FnMut(Range<usize>) -> Result<M> + 'a>;
