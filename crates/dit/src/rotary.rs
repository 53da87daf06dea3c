//! The rotary embeddings of tokens that have a position on several axes.
//!
//! The tables of all tokens are made on the device of one table with the angles of the first numbers, since a recorded step takes
//! nothing from the host.

use candle_core::{DType, Tensor};
use kiln_network::{Inputs, Slot};
use kiln_nn::{Result, RopeTables, TensorLike};

use crate::tokens::join_tokens;

/// The table, `(2, n, head_dim / 2)` in f32: cosines, then sines.
const TABLE: Slot = Slot::shared("rotary positions").keeping_dtype();
/// The rows of a table that serves images of any usual size: 512 tokens of 16 pixels along each side.
pub(crate) const USUAL: usize = 512;

/// The axes of a network's positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rotary<const N: usize> {
    /// The channels of a head that turn with each axis, which are even numbers.
    pub(crate) axes: [usize; N],
    /// The base of the frequencies.
    pub(crate) theta: f64,
}

/// The numbers of a grid's tokens on one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    /// One number for all.
    All(usize),
    /// The number of the row.
    Rows,
    /// The number of the row, counted from this one on.
    RowsFrom(usize),
    /// The number of the column, counted from this one on.
    Columns(usize),
}

impl<const N: usize> Rotary<N> {
    /// `inputs` with the table of `count` numbers, made once for all steps.
    pub(crate) fn prepare<T: TensorLike>(&self, inputs: Inputs<T>, count: usize) -> Result<Inputs<T>> {
        self.prepare_with(inputs, || self.table(count))
    }

    /// `inputs` with the table that `table` makes, once for all steps.
    pub(crate) fn prepare_with<T: TensorLike>(
        &self,
        mut inputs: Inputs<T>,
        table: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Inputs<T>> {
        if inputs.get(TABLE).is_some() {
            return Ok(inputs);
        }
        let like = inputs.tensors().next().map(in_f32).transpose()?;
        if let Some(like) = like {
            inputs.add(TABLE, 0, like.new_constant(&table()?)?);
        }
        Ok(inputs)
    }

    /// The table of at least `needed` numbers: `prepared`, or one from the host if that is absent or too small. `like` is a tensor in
    /// f32.
    pub(crate) fn table_for<T: TensorLike>(&self, prepared: Option<&T>, needed: usize, like: &T) -> Result<T> {
        match prepared.filter(|table| table.dims().get(1).is_some_and(|rows| *rows >= needed)) {
            Some(table) => Ok(table.clone()),
            None => like.new_constant(&self.table(needed)?),
        }
    }

    /// Cosines and sines of the numbers below `count` on every axis, `(2, count, head_dim / 2)` in the host's memory.
    pub(crate) fn table(&self, count: usize) -> Result<Tensor> {
        self.table_from(0, count)
    }

    /// Cosines and sines of the numbers from `-below` to `count - 1` on every axis, `(2, below + count, head_dim / 2)` in the
    /// host's memory.
    pub(crate) fn table_from(&self, below: usize, count: usize) -> Result<Tensor> {
        let positions: Vec<[f64; N]> = (0..below + count).map(|i| [i as f64 - below as f64; N]).collect();
        let RopeTables { cos, sin } = RopeTables::new(&positions, self.axes, self.theta)?;
        Ok(Tensor::stack(&[cos, sin], 0)?)
    }

    /// The rows of `table` for a grid of `height` and `width` tokens, row by row: `(2, height * width, channels / 2)` for the axes
    /// from `first` on, as many as `places` has.
    pub(crate) fn of_grid<T: TensorLike>(
        &self,
        table: &T,
        (first, places): (usize, &[Along]),
        [height, width]: [usize; 2],
    ) -> Result<T> {
        let mut before = self.axes.iter().take(first).sum::<usize>() / 2;
        let mut all: Option<T> = None;
        for (channels, place) in self.axes.iter().skip(first).zip(places) {
            let (start, [rows, columns]) = match *place {
                Along::All(number) => (number, [1, 1]),
                Along::Rows => (0, [height, 1]),
                Along::RowsFrom(start) => (start, [height, 1]),
                Along::Columns(start) => (start, [1, width]),
            };
            let half = channels / 2;
            let part = table.narrow(1, start, rows * columns)?.narrow(2, before, half)?.contiguous()?;
            let part = part.reshape(&[2, rows, columns, half])?.upsample_nearest((height, width), None)?;
            before += half;
            all = Some(match all {
                Some(all) => all.concat_channels(&part)?,
                None => part,
            });
        }
        let Some(all) = all else { return Ok(table.clone()) };
        let [_, _, _, half] = all.size4()?;
        all.reshape(&[2, height * width, half])
    }
}

/// The table among `inputs`.
pub(crate) fn prepared<T: TensorLike>(inputs: &Inputs<T>) -> Option<T> {
    inputs.get(TABLE).cloned()
}

/// The tables of tokens one after another, of `parts` `(2, s, head_dim / 2)` each.
pub(crate) fn joined<T: TensorLike>(parts: &[T]) -> Result<RopeTables<T>> {
    let mut all: Option<T> = None;
    for part in parts.iter().filter(|part| part.dims().get(1) != Some(&0)) {
        all = Some(match all {
            Some(all) => join_tokens(&all, part)?,
            None => part.clone(),
        });
    }
    let Some(all) = all else {
        return Err(kiln_nn::ops::Error::Config { op: "rope", message: "there are no tokens".into() }.into());
    };
    let [_, tokens, half] = all.size3()?;
    let [cos, sin] = [0, 1].map(|i| all.narrow(0, i, 1)?.reshape(&[tokens, half]));
    Ok(RopeTables { cos: cos?, sin: sin? })
}

/// One number in f32 on the device of `x`.
pub(crate) fn in_f32<T: TensorLike>(x: &T) -> Result<T> {
    let mut one = x.clone();
    for dim in 0..x.dims().len() {
        one = one.narrow(dim, 0, 1)?;
    }
    one.contiguous()?.to_dtype(DType::F32)
}
