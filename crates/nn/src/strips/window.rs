//! Rows of a map that several layers still read.

use std::ops::Range;

use super::size;
use crate::error::Result;
use crate::tensor::TensorLike;

/// Consecutive rows of a map `(1, h, w, c)`: new ones are added at the end, and those that no layer reads any more are
/// dropped at the start.
pub struct Window<T> {
    rows: Option<T>,
    /// The first of these rows in the map.
    first: usize,
    /// The row of the map after the last one that was added.
    end: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { rows: None, first: 0, end: 0 }
    }
}

impl<T: TensorLike> Window<T> {
    /// The row of the map after the last one that was added.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Adds the next rows of the map, `(1, n, w, c)`.
    pub fn push(&mut self, strip: T) -> Result<()> {
        let [new, w, c] = size(&strip);
        self.end += new;
        self.rows = Some(match self.rows.take() {
            None => strip,
            Some(kept) => {
                let [old, ..] = size(&kept);
                let all = strip.new_empty(&[1, old + new, w, c])?;
                all.slice_set(&kept, 1, 0)?;
                all.slice_set(&strip, 1, old)?;
                all
            }
        });
        Ok(())
    }

    /// Rows of the map, which are a view of the window.
    ///
    /// # Errors
    /// [`kiln_ops::Error::Shape`] where the window does not have them.
    pub fn rows(&self, rows: Range<usize>) -> Result<T> {
        match &self.rows {
            Some(all) if self.first <= rows.start && rows.start <= rows.end && rows.end <= self.end => {
                all.rows(rows.start - self.first..rows.end - self.first)
            }
            _ => {
                let (expected, found) = (format!("rows {rows:?}"), vec![self.first, self.end]);
                Err(kiln_ops::Error::Shape { op: "window", operand: "rows", expected, found }.into())
            }
        }
    }

    /// Drops the rows of the map before `row`. The others are copied, since what they were a view of may be overwritten.
    pub fn drop_before(&mut self, row: usize) -> Result<()> {
        let row = row.clamp(self.first, self.end);
        if let Some(all) = self.rows.take().filter(|_| row < self.end) {
            self.rows = Some(all.rows(row - self.first..self.end - self.first)?.copy()?);
        }
        self.first = row;
        Ok(())
    }
}
