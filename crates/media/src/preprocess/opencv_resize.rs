//! Resizing as OpenCV does it, for preprocessors whose references use it (`modules/imgproc/src/resize.cpp` of OpenCV 4 and 5).
//!
//! Cubic and linear weights have 11 bits in each direction; areas are summed in f32. OpenCV's vector loops round some sums in
//! f32, so that a value may differ by one level where its exact result lies half way between two.

use crate::{Image8, Result};

/// A filter of OpenCV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenCvFilter {
    /// `INTER_NEAREST`.
    Nearest,
    /// `INTER_CUBIC`: a = -0.75, four pixels a direction, whatever the size of the result.
    Cubic,
    /// `INTER_AREA`: the mean of the covered area. For larger results OpenCV interpolates linearly within each pixel's area.
    Area,
}

/// Weights in one direction: for each place of the result the first source place and the weights from there. Places outside
/// are those of the border.
type Taps = Vec<(i64, Vec<i32>)>;

/// Bits of a weight.
const BITS: u32 = 11;

impl<const C: usize> Image8<C> {
    /// The image with another size.
    ///
    /// # Errors
    /// [`crate::Error::Size`] for a side of 0 and more than [`crate::MAX_PIXELS`] pixels.
    pub(super) fn opencv_resize(&self, width: usize, height: usize, filter: OpenCvFilter) -> Result<Self> {
        Self::filled(width, height, [0; C])?;
        if self.size() == (width, height) {
            return Ok(self.clone());
        }
        let (from_w, from_h) = self.size();
        match filter {
            OpenCvFilter::Nearest => self.opencv_nearest(width, height),
            OpenCvFilter::Cubic => self.weighted(&cubic(from_w, width), &cubic(from_h, height)),
            OpenCvFilter::Area if width <= from_w && height <= from_h => self.area(width, height),
            OpenCvFilter::Area => self.weighted(&within_areas(from_w, width), &within_areas(from_h, height)),
        }
    }

    fn opencv_nearest(&self, width: usize, height: usize) -> Result<Self> {
        let place = |i: usize, from: usize, to: usize| {
            let scale = from as f64 / to as f64;
            ((i as f64 * scale) as usize).min(from - 1)
        };
        let mut data = Vec::with_capacity(width * height * C);
        for y in 0..height {
            let row = self.row(place(y, self.height(), height)).as_chunks::<C>().0;
            data.extend((0..width).flat_map(|x| row[place(x, self.width(), width)]));
        }
        Self::new(width, height, data)
    }

    /// Both passes with whole weights, rounded once.
    fn weighted(&self, columns: &Taps, rows: &Taps) -> Result<Self> {
        let clamped = |at: i64, len: usize| at.clamp(0, len as i64 - 1) as usize;
        let across = |y: usize| -> Vec<i32> {
            let row = self.row(y).as_chunks::<C>().0;
            let sum = |c: usize, first: i64, weights: &[i32]| -> i32 {
                (first..).zip(weights).map(|(x, w)| i32::from(row[clamped(x, row.len())][c]) * w).sum()
            };
            columns.iter().flat_map(|(first, weights)| (0..C).map(move |c| sum(c, *first, weights))).collect()
        };
        let mut data = Vec::with_capacity(columns.len() * rows.len() * C);
        let mut known: Vec<(usize, Vec<i32>)> = Vec::new();
        for (first, weights) in rows {
            let needed: Vec<usize> = (*first..).take(weights.len()).map(|y| clamped(y, self.height())).collect();
            known.retain(|(y, _)| needed.contains(y));
            for &y in &needed {
                if !known.iter().any(|(there, _)| *there == y) {
                    known.push((y, across(y)));
                }
            }
            let lines: Vec<&[i32]> = needed
                .iter()
                .filter_map(|y| known.iter().find(|(there, _)| there == y).map(|(_, line)| line.as_slice()))
                .collect();
            for i in 0..columns.len() * C {
                data.push(match (&lines[..], &weights[..]) {
                    // `VResizeLinear` drops bits before it adds.
                    ([a, b], [v, w]) => {
                        let part = |line: &[i32], weight: i32| (weight * (line[i] >> 4)) >> 16;
                        ((part(a, *v) + part(b, *w) + 2) >> 2).clamp(0, 255) as u8
                    }
                    _ => {
                        let products = lines.iter().zip(weights).map(|(line, w)| i64::from(line[i]) * i64::from(*w));
                        rounded(products.sum(), 2 * BITS)
                    }
                });
            }
        }
        Self::new(columns.len(), rows.len(), data)
    }

    /// The mean of each area, summed in f32 in OpenCV's order: along a row, then over the rows.
    fn area(&self, width: usize, height: usize) -> Result<Self> {
        let (columns, rows) = (parts(self.width(), width), parts(self.height(), height));
        let whole = |from: usize, to: usize| from.is_multiple_of(to).then(|| from / to);
        let fast = whole(self.width(), width).zip(whole(self.height(), height));
        let mut data = Vec::with_capacity(width * height * C);
        for (first_row, row_weights) in &rows {
            for (first, weights) in &columns {
                for c in 0..C {
                    let at = |x: usize, y: usize| self.row(y).as_chunks::<C>().0[x][c];
                    if let Some((w, h)) = fast {
                        let sum: u32 = (*first_row..first_row + h)
                            .flat_map(|y| (*first..first + w).map(move |x| u32::from(at(x, y))))
                            .sum();
                        data.push(match (w, h) {
                            (2, 2) => ((sum + 2) >> 2) as u8,
                            _ => (sum as f32 * (1.0 / (w * h) as f32)).round_ties_even() as u8,
                        });
                        continue;
                    }
                    let mut sum = 0.0f32;
                    for (y, row_weight) in (*first_row..).zip(row_weights) {
                        let line = (*first..).zip(weights).fold(0.0f32, |sum, (x, w)| sum + f32::from(at(x, y)) * w);
                        sum += row_weight * line;
                    }
                    data.push(sum.round_ties_even().clamp(0.0, 255.0) as u8);
                }
            }
        }
        Self::new(width, height, data)
    }
}

/// `sum / 2^bits` rounded to a byte, half to even.
fn rounded(sum: i64, bits: u32) -> u8 {
    let floor = sum >> bits;
    let (rest, half) = (sum - (floor << bits), 1i64 << (bits - 1));
    let up = rest > half || (rest == half && floor & 1 == 1);
    (floor + i64::from(up)).clamp(0, 255) as u8
}

fn whole_weight(weight: f32) -> i32 {
    (weight * (1 << BITS) as f32).round_ties_even() as i32
}

/// `interpolateCubic` at each place.
fn cubic(from: usize, to: usize) -> Taps {
    const A: f32 = -0.75;
    let scale = from as f64 / to as f64;
    (0..to)
        .map(|i| {
            let at = ((i as f64 + 0.5) * scale - 0.5) as f32;
            let first = at.floor();
            let x = at - first;
            let outer = ((A * (x + 1.0) - 5.0 * A) * (x + 1.0) + 8.0 * A) * (x + 1.0) - 4.0 * A;
            let inner = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
            let (second, third) = (inner(x), inner(1.0 - x));
            let weights = [outer, second, third, 1.0 - outer - second - third];
            (first as i64 - 1, weights.map(whole_weight).to_vec())
        })
        .collect()
}

/// `INTER_AREA` for a larger result.
fn within_areas(from: usize, to: usize) -> Taps {
    let (scale, inverse) = (from as f64 / to as f64, to as f64 / from as f64);
    (0..to)
        .map(|i| {
            let first = (i as f64 * scale).floor();
            let part = ((i as f64 + 1.0) - (first + 1.0) * inverse) as f32;
            let part = if part <= 0.0 { 0.0 } else { part - part.floor() };
            (first as i64, vec![whole_weight(1.0 - part), whole_weight(part)])
        })
        .collect()
}

/// The source places that each place of a smaller result covers, with their parts of its area (`computeResizeAreaTab`).
fn parts(from: usize, to: usize) -> Vec<(usize, Vec<f32>)> {
    const LEAST: f64 = 1e-3;
    let scale = from as f64 / to as f64;
    (0..to)
        .map(|i| {
            let (start, end) = (i as f64 * scale, (i as f64 + 1.0) * scale);
            let cell = scale.min(from as f64 - start);
            let last = (end.floor() as usize).min(from - 1);
            let first = (start.ceil() as usize).min(last);
            let mut weights = Vec::new();
            let mut begin = first;
            if first as f64 - start > LEAST {
                begin = first - 1;
                weights.push(((first as f64 - start) / cell) as f32);
            }
            weights.extend((first..last).map(|_| (1.0 / cell) as f32));
            if end - last as f64 > LEAST {
                weights.push(((end - last as f64).min(1.0).min(cell) / cell) as f32);
            }
            (begin, weights)
        })
        .collect()
}
