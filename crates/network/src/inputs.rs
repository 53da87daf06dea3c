//! Named tensors and constants for a call of a network.

use std::ops::Range;

use candle_core::{DType, Tensor};
use kiln_nn::{MetaTensor, TensorLike};

use crate::error::{Error, Result};
use crate::key::{InputKey, TensorKey};
use crate::slot::{Access, Rows, Slot};

/// The inputs of a network besides latents and timestep, in the order in which they were added.
///
/// Tensors are values: a recorded call is replayed with others. Constants are part of the call: a call that was recorded with
/// other constants is another one. With guidance a batch holds each image several times: the unconditional rows first, then the
/// conditional ones.
#[derive(Debug, Clone)]
pub struct Inputs<T = Tensor> {
    entries: Vec<Entry<T>>,
    constants: Vec<(&'static str, usize, u64)>,
    counts: Vec<(&'static str, usize)>,
}

/// One tensor.
#[derive(Debug, Clone)]
struct Entry<T> {
    slot: Slot,
    /// Distinguishes several inputs of one kind, each of which may have several tensors.
    index: usize,
    /// The identity of the values of a shared tensor.
    tag: u64,
    value: T,
}

impl<T> Default for Inputs<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), constants: Vec::new(), counts: Vec::new() }
    }
}

impl<T> Inputs<T> {
    /// No inputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    pub fn with(mut self, slot: Slot, value: T) -> Self {
        self.add(slot, 0, value);
        self
    }

    /// Adds a shared tensor whose values `tag` identifies: [`Self::group_key`] differs if the tags do. Without a tag the shapes and
    /// the constants identify the values.
    pub fn with_shared(mut self, slot: Slot, tag: u64, value: T) -> Self {
        self.entries.push(Entry { slot, index: 0, tag, value });
        self
    }

    /// Adds a tensor of the input `index` of several of one kind.
    pub fn add(&mut self, slot: Slot, index: usize, value: T) {
        self.entries.push(Entry { slot, index, tag: 0, value });
    }

    /// Adds a constant.
    pub fn with_constant(mut self, name: &'static str, value: u64) -> Self {
        self.add_constant(name, 0, value);
        self
    }

    /// Adds a constant of the input `index` of several of one kind.
    pub fn add_constant(&mut self, name: &'static str, index: usize, value: u64) {
        self.constants.push((name, index, value));
    }

    /// Adds a number of rows: `count` of the batch, the last ones.
    pub fn with_rows(mut self, name: &'static str, count: usize) -> Self {
        self.counts.push((name, count));
        self
    }

    /// The first tensor of a slot.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.all(slot).next()
    }

    /// All tensors of a slot.
    pub fn all(&self, slot: Slot) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(move |entry| entry.slot.name == slot.name).map(|entry| &entry.value)
    }

    /// All tensors of a slot that belong to input `index`.
    pub fn all_of(&self, slot: Slot, index: usize) -> impl Iterator<Item = &T> {
        let is_own = move |entry: &&Entry<T>| entry.slot.name == slot.name && entry.index == index;
        self.entries.iter().filter(is_own).map(|entry| &entry.value)
    }

    /// The first constant of a name.
    pub fn constant(&self, name: &str) -> Option<u64> {
        self.constants.iter().find(|(known, ..)| *known == name).map(|(.., value)| *value)
    }

    /// All constants of a name that belong to input `index`.
    pub fn constants_of(&self, name: &str, index: usize) -> impl Iterator<Item = u64> {
        let is_own = move |known: &&(&str, usize, u64)| known.0 == name && known.1 == index;
        self.constants.iter().filter(is_own).map(|(.., value)| *value)
    }

    /// One more than the largest index among the constants of a name: the number of inputs of this kind.
    pub fn count_of(&self, name: &str) -> usize {
        let indices = self.constants.iter().filter(|(known, ..)| *known == name).map(|(_, index, _)| index + 1);
        indices.max().unwrap_or(0)
    }

    /// A number of last rows; 0 if there is none of this name.
    pub fn rows_of(&self, name: &str) -> usize {
        self.counts.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }

    /// The inputs without the tensors of a slot.
    pub fn without(mut self, slot: Slot) -> Self {
        self.entries.retain(|entry| entry.slot.name != slot.name);
        self
    }

    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// All tensors that calls write, or read as earlier calls wrote them.
    pub fn state(&self) -> impl Iterator<Item = (&Slot, &T)> {
        let entries = self.entries.iter().filter(|entry| entry.slot.access != Access::Input);
        entries.map(|entry| (&entry.slot, &entry.value))
    }

    /// Replaces each tensor by the one that `f` makes of it.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn map<U, E>(&self, mut f: impl FnMut(&Slot, &T) -> Result<U, E>) -> Result<Inputs<U>, E> {
        let entry = |entry: &Entry<T>| {
            let Entry { slot, index, tag, value } = entry;
            Ok(Entry { slot: *slot, index: *index, tag: *tag, value: f(slot, value)? })
        };
        let entries = self.entries.iter().map(entry).collect::<Result<_, E>>()?;
        Ok(Inputs { entries, constants: self.constants.clone(), counts: self.counts.clone() })
    }
}

impl<T: TensorLike> Inputs<T> {
    /// The rows of the batch: those of the first tensor that has a row for each.
    pub fn batch(&self) -> usize {
        let each = self.entries.iter().find(|entry| entry.slot.rows == Rows::Each);
        each.and_then(|entry| entry.value.dims().first().copied()).unwrap_or(0)
    }

    /// The inputs of several batches as those of one, whose rows `join` makes of theirs. Shared tensors are the first one's.
    ///
    /// # Errors
    /// [`Error::Input`] if `all` is empty, or if inputs, constants or shared values differ; and those of `join`.
    pub fn combine<E: From<Error>>(all: &[&Self], mut join: impl FnMut(&[&T]) -> Result<T, E>) -> Result<Self, E> {
        let fail = |input: &'static str| {
            let expected = "in all conditions of a batch, or in none".into();
            E::from(Error::Input { input, expected, found: Vec::new() })
        };
        let Some(first) = all.first() else { return Err(fail("inputs")) };
        for other in &all[1..] {
            if let Some(input) = first.difference(other) {
                return Err(fail(input));
            }
        }
        let mut entries = Vec::with_capacity(first.entries.len());
        for (i, entry) in first.entries.iter().enumerate() {
            let value = match entry.slot.rows {
                Rows::Shared => entry.value.clone(),
                Rows::Each | Rows::Last => {
                    join(&all.iter().map(|inputs| &inputs.entries[i].value).collect::<Vec<_>>())?
                }
            };
            entries.push(Entry { value, ..*entry });
        }
        let count = |(i, (name, _)): (usize, &(&'static str, usize))| {
            (*name, all.iter().map(|inputs| inputs.counts[i].1).sum::<usize>())
        };
        let counts = first.counts.iter().enumerate().map(count).collect();
        Ok(Self { entries, constants: first.constants.clone(), counts })
    }

    /// The first input that is not the same kind of input in `other`.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let kinds = |inputs: &Self| -> Vec<(Slot, usize, u64)> {
            let of = |Entry { slot, index, tag, .. }: &Entry<T>| (*slot, *index, *tag);
            inputs.entries.iter().map(of).collect()
        };
        let names = |inputs: &Self| inputs.counts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        first_difference(&kinds(self), &kinds(other), |(slot, ..)| slot.name)
            .or_else(|| first_difference(&self.constants, &other.constants, |(name, ..)| name))
            .or_else(|| first_difference(&names(self), &names(other), |name| name))
    }

    /// The inputs of the rows `rows` of the batch. Tensors of its last rows are left out if none of these is among them, and
    /// so are numbers of rows. The tensors share their memory with the whole.
    ///
    /// # Errors
    /// [`Error::Input`] for rows that do not exist, and for state, which belongs to the batch as a whole.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let batch = self.batch();
        let mut entries = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let Entry { slot, value, .. } = entry;
            let fail = |expected| Error::Input { input: slot.name, expected, found: value.dims().to_vec() };
            if slot.access != Access::Input {
                return Err(fail("no state where the rows of a batch are divided".into()));
            }
            let part = match slot.rows {
                Rows::Shared => Some(value.clone()),
                Rows::Each | Rows::Last => part(value, &rows, batch)?,
            };
            match part {
                Some(value) => entries.push(Entry { value, ..*entry }),
                None if slot.rows == Rows::Last => {}
                None => return Err(fail(format!("{batch} rows"))),
            }
        }
        let count = |&(name, count): &(&'static str, usize)| {
            let first = rows.start.max(batch.saturating_sub(count));
            Some((name, rows.end.saturating_sub(first))).filter(|(_, count)| *count > 0)
        };
        let counts = self.counts.iter().filter_map(count).collect();
        Ok(Self { entries, constants: self.constants.clone(), counts })
    }

    /// Converts the tensors to another type, but for slots that keep theirs.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.map(|slot, value| Ok(if slot.keeps_dtype { value.clone() } else { value.to_dtype(dtype)? }))
    }

    /// Copies the tensors to memory of their own.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn copy(&self) -> Result<Self> {
        self.map(|_, value| Ok(value.copy()?))
    }

    /// Overwrites the tensors of `to`, which has the same [`Self::key`], with these, as far as `selects` says for the use of a tensor.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn write_to(&self, to: &Self, selects: impl Fn(Access) -> bool) -> Result<()> {
        for (from, to) in self.entries.iter().zip(&to.entries).filter(|(from, _)| selects(from.slot.access)) {
            to.value.slice_set(&from.value.contiguous()?, 0, 0)?;
        }
        Ok(())
    }

    /// Shapes and constants: the properties that a recorded call has in it.
    pub fn key(&self) -> InputKey {
        self.key_of(|entry| (entry.value.dims().to_vec(), None), 1)
    }

    /// The properties that two batches need to have in common for one call, for inputs of `images` images: the rows of an
    /// image, shapes, constants, and shared values.
    pub fn group_key(&self, images: usize) -> InputKey {
        let images = images.max(1);
        let of = |entry: &Entry<T>| {
            let mut dims = entry.value.dims().to_vec();
            if let (Some(rows), Rows::Each | Rows::Last) = (dims.first_mut(), entry.slot.rows) {
                *rows /= images;
            }
            (dims, Some(entry.tag))
        };
        self.key_of(of, images)
    }

    fn key_of(&self, of: impl Fn(&Entry<T>) -> (Vec<usize>, Option<u64>), images: usize) -> InputKey {
        let tensor = |entry: &Entry<T>| {
            let (dims, tag) = of(entry);
            TensorKey { slot: entry.slot, index: entry.index, dims, tag }
        };
        InputKey {
            tensors: self.entries.iter().map(tensor).collect(),
            constants: self.constants.clone(),
            counts: self.counts.iter().map(|(name, count)| (*name, count / images)).collect(),
        }
    }
}

impl Inputs<MetaTensor> {
    /// The bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.tensors().map(MetaTensor::bytes).sum()
    }
}

/// The rows `rows` of a tensor `(r, ..)` that belongs to the last `r` of `batch` rows; `None` if it has none of them.
fn part<T: TensorLike>(tensor: &T, rows: &Range<usize>, batch: usize) -> Result<Option<T>> {
    let without = batch.saturating_sub(tensor.dims().first().copied().unwrap_or(0));
    let (start, end) = (rows.start.saturating_sub(without), rows.end.saturating_sub(without));
    if start >= end { Ok(None) } else { Ok(Some(tensor.narrow(0, start, end - start)?)) }
}

/// The name of the first item in which two lists differ.
fn first_difference<I: PartialEq>(a: &[I], b: &[I], name: impl Fn(&I) -> &'static str) -> Option<&'static str> {
    let differs = a.iter().zip(b).find(|(a, b)| a != b).map(|(a, _)| a);
    differs.or_else(|| a.get(b.len())).or_else(|| b.get(a.len())).map(name)
}

#[cfg(test)]
mod tests;
