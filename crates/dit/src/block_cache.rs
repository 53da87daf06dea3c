//! The first-block cache (ParaAttention; diffusers' `FirstBlockCacheConfig`): where the first block adds nearly the same to an image
//! as before, what the other blocks have added then stands for what they would add now, as it was or on a straight line
//! ([`crate::residual_trend`]).
//!
//! The measure is the mean of `|r - p|` over the mean of `|p|`, for what the first block adds to an image's tokens now (`r`) and what
//! it added at the last evaluation at which all blocks ran (`p`). An image skips the other blocks if that is less than the
//! threshold. All rows of an image decide together, those with and without its prompt. An image does not see the others of its
//! batch: the other blocks run for the rows of those images that need them.

use std::ops::Range;

use candle_core::{Device, Tensor};
use kiln_network::slots::{
    BLOCK_CACHE, FIRST_RESIDUAL, OTHER_RESIDUAL, RESIDUAL_CHANGE, RESIDUAL_TIMES, SKIPPED_EVALUATIONS,
};
use kiln_network::{Inputs, Slot};
use kiln_nn::{Result, RopeTables, TensorLike};

use crate::error::Error;
use crate::residual_trend::ResidualTrend;

/// The tensors that run through the blocks of a network.
pub(crate) trait Tokens<T>: Sized {
    /// The tokens of the image `(b, n, c)`.
    fn image(&self) -> Result<T>;

    /// The tokens of some rows of the batch alone.
    fn pick(self, rows: Rows) -> Result<Self>;
}

/// Some rows of a batch of two or more, in their order.
pub(crate) struct Rows(Vec<u32>);

impl Rows {
    /// These rows of `x` `(b, ..)`. All rows share a tensor `(1, ..)`.
    pub(crate) fn of<T: TensorLike>(&self, x: &T) -> Result<T> {
        match x.dims().first() {
            Some(&rows) if rows > 1 => x.contiguous()?.index_select(&self.0),
            _ => Ok(x.clone()),
        }
    }

    /// The positions of the tokens of these rows.
    pub(crate) fn of_tables<T: TensorLike>(&self, tables: &RopeTables<T>) -> Result<RopeTables<T>> {
        // Without a dimension of the batch all rows share them.
        match tables.cos.dims().len() {
            3 => Ok(RopeTables { cos: self.of(&tables.cos)?, sin: self.of(&tables.sin)? }),
            _ => Ok(tables.clone()),
        }
    }

    /// How many of them are among the rows `range`.
    pub(crate) fn among(&self, range: Range<usize>) -> usize {
        self.0.iter().filter(|row| range.contains(&(**row as usize))).count()
    }
}

/// Whether a slot has what blocks have added to the tokens of an image, in a place for each token.
pub(crate) fn is_residual(slot: Slot) -> bool {
    [FIRST_RESIDUAL, OTHER_RESIDUAL, RESIDUAL_CHANGE].contains(&slot)
}

/// The cache of a call.
pub(crate) struct BlockCache<T> {
    threshold: f64,
    images: usize,
    /// See [`FIRST_RESIDUAL`], as tokens `(b, n, c)`.
    first: T,
    /// See [`OTHER_RESIDUAL`].
    others: T,
    /// The line on which `others` goes on, if it is predicted.
    trend: Option<ResidualTrend<T>>,
    /// See [`SKIPPED_EVALUATIONS`].
    skipped: T,
}

impl<T: TensorLike> BlockCache<T> {
    /// The cache among `inputs` of the network named `network`, for image tokens of the sizes `[b, n, c]` at `timesteps`.
    ///
    /// # Errors
    /// [`Error::Input`] for tensors that do not fit.
    pub(crate) fn of(
        network: &'static str,
        inputs: &Inputs<T>,
        [b, n, c]: [usize; 3],
        timesteps: &T,
    ) -> crate::Result<Option<Self>> {
        let Some(threshold) = inputs.constant(BLOCK_CACHE) else { return Ok(None) };
        let refused = |input: &'static str, expected: String, found: Option<&[usize]>| {
            let found = found.unwrap_or_default().to_vec();
            Error::Input { network, input, expected, found }
        };
        let images = inputs.rows_of(BLOCK_CACHE);
        if images == 0 || !b.is_multiple_of(images) {
            let expected = format!("a number of images that divides {b} rows");
            return Err(refused(BLOCK_CACHE, expected, Some(&[images])));
        }
        let tokens = |slot: Slot| -> crate::Result<T> {
            match inputs.get(slot) {
                Some(x) if matches!(*x.dims(), [rows, h, w, depth] if rows == b && h * w == n && depth == c) => {
                    Ok(x.reshape(&[b, n, c])?)
                }
                other => Err(refused(slot.name, format!("({b}, h, w, {c}) of {n} tokens"), other.map(T::dims))),
            }
        };
        let (first, others) = (tokens(FIRST_RESIDUAL)?, tokens(OTHER_RESIDUAL)?);
        let numbers = |slot: Slot, dims: &[usize]| match inputs.get(slot) {
            Some(x) if x.dims() == dims => Ok(x.clone()),
            other => Err(refused(slot.name, format!("{dims:?}"), other.map(T::dims))),
        };
        let skipped = numbers(SKIPPED_EVALUATIONS, &[b])?;
        let trend = match inputs.get(RESIDUAL_CHANGE) {
            Some(_) => {
                let (change, times) = (tokens(RESIDUAL_CHANGE)?, numbers(RESIDUAL_TIMES, &[b, 2])?);
                Some(ResidualTrend { change, times, now: timesteps.clone() })
            }
            None => None,
        };
        Ok(Some(Self { threshold: f64::from_bits(threshold), images, first, others, trend, skipped }))
    }

    /// The tokens after all blocks, if those after the first one are `first` `(b, n, c)` and the others are skipped.
    fn skip(&self, first: &T) -> Result<T> {
        match &self.trend {
            Some(trend) => sum(first, &trend.predicted(&self.others)?),
            None => sum(first, &self.others),
        }
    }

    /// [`Self::skip`] for row `row`, whose tokens are `first` `(1, n, c)`.
    fn skip_row(&self, first: &T, row: usize) -> Result<T> {
        let others = row_of(&self.others, row)?;
        match &self.trend {
            Some(trend) => sum(first, &trend.predicted_row(&others, row)?),
            None => sum(first, &others),
        }
    }

    /// Stores what the first block and the others have added to all rows.
    fn store(&self, residual: &T, others: &T) -> Result<()> {
        if let Some(trend) = &self.trend {
            trend.store(others, &self.others)?;
        }
        self.others.slice_set(others, 0, 0)?;
        self.first.slice_set(residual, 0, 0)
    }

    /// Stores what they have added to row `row`, each `(1, n, c)`.
    fn store_row(&self, residual: &T, others: &T, row: usize) -> Result<()> {
        if let Some(trend) = &self.trend {
            trend.store_row(others, &row_of(&self.others, row)?, row)?;
        }
        self.others.slice_set(others, 0, row)?;
        self.first.slice_set(residual, 0, row)
    }

    /// The rows that need the other blocks, if the first one has added `residual` to the tokens.
    fn needing(&self, residual: &T) -> Result<Vec<u32>> {
        let [b, ..] = residual.size3()?;
        let sums = residual.change_sums(&self.first)?;
        let [_, parts, _] = sums.size3()?;
        // Tensors without values are of a plan, which has room for all rows.
        let Some(sums) = sums.values()? else { return Ok((0..b as u32).collect()) };
        let mut of_images = vec![[0f64; 2]; self.images];
        for (row, sums) in sums.chunks(2 * parts.max(1)).enumerate() {
            let [change, before] = &mut of_images[row % self.images];
            for pair in sums.chunks(2) {
                *change += f64::from(pair[0]);
                *before += f64::from(pair[1]);
            }
        }
        // Nothing was stored yet if the quotient is no number.
        let skips: Vec<bool> = of_images.iter().map(|[change, before]| change / before < self.threshold).collect();
        Ok((0..b as u32).filter(|row| !skips[*row as usize % self.images]).collect())
    }

    /// Counts an evaluation at which the rows besides `running` skip the other blocks.
    fn count(&self, running: &[u32]) -> Result<()> {
        let b = self.skipped.dims().first().copied().unwrap_or(0);
        let skips: Vec<f32> = (0..b as u32).map(|row| if running.contains(&row) { 0.0 } else { 1.0 }).collect();
        let skips = self.skipped.new_constant(&Tensor::from_vec(skips, b, &Device::Cpu)?)?;
        self.skipped.slice_set(&self.skipped.add(&skips)?, 0, 0)
    }
}

/// Runs `count` blocks and returns the tokens of the image. `blocks` runs some of them, by their numbers.
pub(crate) fn run_blocks<T: TensorLike, S: Tokens<T>>(
    cache: Option<BlockCache<T>>,
    tokens: S,
    count: usize,
    mut blocks: impl FnMut(S, Range<usize>) -> Result<S>,
) -> Result<T> {
    let Some(cache) = cache.filter(|_| count > 0) else { return blocks(tokens, 0..count)?.image() };
    let before = tokens.image()?;
    let tokens = blocks(tokens, 0..1)?;
    let first = tokens.image()?;
    let residual = difference(&first, &before)?;
    drop(before);
    let running = cache.needing(&residual)?;
    let [b, ..] = first.size3()?;
    // Nothing is stored before all blocks have run: a call that fails is made again, and must not find half of it.
    if running.len() == b {
        let last = blocks(tokens, 1..count)?.image()?;
        cache.store(&residual, &difference(&last, &first)?)?;
        return Ok(last);
    }
    if running.is_empty() {
        drop(tokens);
        let last = cache.skip(&first)?;
        cache.count(&running)?;
        return Ok(last);
    }
    let last = blocks(tokens.pick(Rows(running.clone()))?, 1..count)?.image()?;
    let mut images = Vec::with_capacity(b);
    for row in 0..b {
        let after = row_of(&first, row)?;
        images.push(match running.iter().position(|running| *running as usize == row) {
            Some(place) => {
                let last = row_of(&last, place)?;
                cache.store_row(&row_of(&residual, row)?, &difference(&last, &after)?, row)?;
                last
            }
            None => cache.skip_row(&after, row)?,
        });
    }
    cache.count(&running)?;
    T::cat(&images.iter().collect::<Vec<_>>(), 0)
}

/// Row `row` of `x` `(b, n, c)`.
pub(crate) fn row_of<T: TensorLike>(x: &T, row: usize) -> Result<T> {
    x.narrow(0, row, 1)?.contiguous()
}

/// `a - b` for tokens `(b, n, c)`.
pub(crate) fn difference<T: TensorLike>(a: &T, b: &T) -> Result<T> {
    scaled_sum(a, -1.0, b)
}

/// `a + b` for tokens `(b, n, c)`.
fn sum<T: TensorLike>(a: &T, b: &T) -> Result<T> {
    scaled_sum(a, 1.0, b)
}

/// `a + factor b`, which stays finite in f16 as the residual connections of blocks do.
fn scaled_sum<T: TensorLike>(a: &T, factor: f32, b: &T) -> Result<T> {
    let [_, _, c] = a.size3()?;
    let factor = a.new_constant(&Tensor::full(factor, (1, c), &Device::Cpu)?)?;
    a.gated_residual(&factor, b)
}
