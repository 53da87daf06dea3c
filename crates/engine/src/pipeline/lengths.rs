//! Texts of unequal length: how long each row of the denoiser's batch is, and what fills a shorter one up.
//!
//! A batch has one tensor of text for all of its rows, so that all rows have one length. AUTOMATIC1111's web UI 1.10 makes
//! it in these steps (`modules/sd_hijack_clip.py`, `modules/prompt_parser.py` in `reconstruct_multicond_batch`,
//! `modules/sd_samplers_cfg_denoiser.py` in `pad_cond_uncond`):
//!
//! 1. The texts of one schedule get empty chunks up to the longest of them.
//! 2. The parts of a prompt (`AND`) get copies of their last token's vector up to the longest part.
//! 3. The prompt and the negative prompt get empty chunks up to the longer one where the option "Pad prompt/negative prompt"
//!    is on. Where it is off, which is the default there, each is run with its own length.
//!
//! Here the third step of the second kind is a repetition: every row is repeated as a whole up to the least common multiple
//! of all lengths, as ComfyUI does it (`comfy/conds.py`, `CONDCrossAttn.concat`). Keys and values that all occur `k` times
//! leave softmax attention as it is, since numerator and denominator both become `k` times as large. So each row gives what
//! it gives alone in its own length, and rows of different lengths still share a batch, a recorded step and a plan.

use std::collections::HashMap;

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::pipeline::conditioning::{ConditioningPlan, Row};
use crate::pipeline::text_cache::Encoded;

/// The most chunks to which shorter texts are repeated. Two texts of 22 and 23 chunks (1,650 words and more) need 506.
const MAX_REPEATED: usize = 512;

/// How long the rows of a batch are, in chunks of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Of each row.
    rows: Vec<RowLength>,
    /// The longest text's chunks.
    longest: usize,
    /// What all rows have in the end.
    total: usize,
    /// Whether rows are filled up to `total` with empty chunks. Otherwise they are repeated.
    padded: bool,
}

/// One row's lengths in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RowLength {
    /// The longest text of the row's schedule.
    own: usize,
    /// The longest of the parts that belong together.
    parts: usize,
}

/// How one text becomes as long as its row: what differs from row to row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fill(RowLength);

impl Lengths {
    /// Of the rows of `n` images whose texts have so many `chunks`, by the texts' numbers.
    ///
    /// # Errors
    /// [`Error::Request`] where rows would have to be repeated to an extreme length.
    pub(crate) fn of(plan: &ConditioningPlan, n: usize, chunks: &[usize], padded: bool) -> Result<Self> {
        let own = |row: &Row| match row {
            // Zeros of any length say the same: without keys and values there is nothing to attend to.
            Row::Zeros => 1,
            Row::Texts { texts, .. } => texts.iter().filter_map(|&text| chunks.get(text)).copied().max().unwrap_or(1),
        };
        let own: Vec<usize> = plan.rows.iter().map(own).collect();
        let unconditional = if plan.guided { n.min(own.len()) } else { 0 };
        let of_row = |(i, &length): (usize, &usize)| {
            let image = |row: usize| (row - unconditional) % n.max(1);
            let together = own.iter().enumerate().skip(unconditional).filter(|(row, _)| image(*row) == image(i));
            let parts = if i < unconditional { length } else { together.map(|(_, &own)| own).max().unwrap_or(length) };
            RowLength { own: length, parts }
        };
        let rows: Vec<RowLength> = own.iter().enumerate().map(of_row).collect();
        let longest = rows.iter().map(|row| row.parts).max().unwrap_or(1);
        let total = if padded { longest } else { common_multiple(&rows, longest)? };
        Ok(Self { rows, longest, total, padded })
    }

    /// The chunks of the longest text.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The chunks of every row.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// How texts of row `i` are filled up.
    pub(crate) fn fill(&self, i: usize) -> Option<Fill> {
        self.rows.get(i).copied().map(Fill)
    }

    /// Whether a text of so many `chunks` needs empty chunks.
    pub(crate) fn needs_empty(&self, Fill(row): Fill, chunks: usize) -> bool {
        chunks < row.own || self.padded && row.parts < self.total
    }

    /// All texts as long as their rows; the arguments are those of [`Self::filled`]. A text that is filled up in two ways becomes two: the rows get the numbers of theirs.
    pub(crate) fn fill_texts(
        &self,
        plan: &mut ConditioningPlan,
        encoded: &[Encoded],
        empty: Option<&Tensor>,
        tokens: usize,
    ) -> Result<Vec<Encoded>> {
        let (mut all, mut numbers): (Vec<Encoded>, HashMap<(usize, Fill), usize>) = Default::default();
        for (i, row) in plan.rows.iter_mut().enumerate() {
            let (Row::Texts { texts, .. }, Some(fill)) = (row, self.fill(i)) else { continue };
            for text in texts {
                *text = match (numbers.get(&(*text, fill)), encoded.get(*text)) {
                    (Some(&number), _) => number,
                    (None, Some(Encoded { context, pooled })) => {
                        let context = self.filled(context, fill, empty, tokens)?;
                        all.push(Encoded { context, pooled: pooled.clone() });
                        numbers.insert((*text, fill), all.len() - 1);
                        all.len() - 1
                    }
                    (None, None) => continue,
                };
            }
        }
        Ok(all)
    }

    /// A text `(1, tokens, d)` as long as its row. `empty` is an empty chunk `(1, t, d)`, where one is needed; `tokens` are
    /// the tokens of a chunk.
    pub(crate) fn filled(
        &self,
        text: &Tensor,
        Fill(row): Fill,
        empty: Option<&Tensor>,
        tokens: usize,
    ) -> Result<Tensor> {
        let chunks = text.dim(1)? / tokens.max(1);
        let with_empty = |text: Tensor, missing: usize| -> Result<Tensor> {
            match empty.filter(|_| missing > 0) {
                None => Ok(text),
                Some(empty) => {
                    let mut all = vec![&text];
                    all.extend(vec![empty; missing]);
                    Ok(Tensor::cat(&all, 1)?)
                }
            }
        };
        let mut text = with_empty(text.clone(), row.own.saturating_sub(chunks))?;
        if row.parts > row.own {
            let last = text.narrow(1, text.dim(1)? - 1, 1)?;
            text = Tensor::cat(&[text, last.repeat((1, (row.parts - row.own) * tokens, 1))?], 1)?;
        }
        if self.padded {
            return with_empty(text, self.total.saturating_sub(row.parts));
        }
        let times = self.total / row.parts.max(1);
        if times > 1 { Ok(text.repeat((1, times, 1))?) } else { Ok(text) }
    }
}

/// The least common multiple of the rows' lengths.
fn common_multiple(rows: &[RowLength], longest: usize) -> Result<usize> {
    let mut common = 1usize;
    for row in rows {
        let length = row.parts.max(1);
        let multiple = (common / greatest_common_divisor(common, length)).saturating_mul(length);
        if multiple > MAX_REPEATED && multiple > longest {
            let mut lengths: Vec<usize> = rows.iter().map(|row| row.parts).collect();
            lengths.sort_unstable();
            lengths.dedup();
            let lengths: Vec<String> = lengths.iter().take(8).map(usize::to_string).collect();
            let expected = format!(
                "on: these prompts have {} chunks of 75 tokens, which do not go together",
                lengths.join(" and ")
            );
            return Err(Error::value("pad_conds", "off", expected));
        }
        common = multiple;
    }
    Ok(common)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use kiln_prompt::PromptSchedule;

    use super::*;

    /// Rows of one image: the negative prompt's text, then one of each part.
    fn plan(rows: &[&[usize]]) -> ConditioningPlan {
        let row = |texts: &&[usize]| Row::Texts { schedule: PromptSchedule::new("a", 4), texts: texts.to_vec() };
        ConditioningPlan { rows: rows.iter().map(row).collect(), guided: true, ..ConditioningPlan::default() }
    }

    /// Texts of one value a token, chunks of two tokens, in which the number is the text's and the decimal its place.
    fn text(number: usize, chunks: usize) -> Tensor {
        let values: Vec<f32> = (0..2 * chunks).map(|i| number as f32 + i as f32 / 10.0).collect();
        Tensor::new(values, &Device::Cpu).unwrap().reshape((1, 2 * chunks, 1)).unwrap()
    }

    fn rows(lengths: &Lengths, texts: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
        let empty = text(9, 1);
        let row = |&(row, number, chunks): &(usize, usize, usize)| {
            let filled = lengths.filled(&text(number, chunks), lengths.fill(row).unwrap(), Some(&empty), 2).unwrap();
            filled.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        texts.iter().map(row).collect()
    }

    #[test]
    fn padded_rows_have_empty_chunks_behind() {
        let lengths = Lengths::of(&plan(&[&[0], &[1]]), 1, &[1, 3], true).unwrap();
        assert_eq!((lengths.total(), lengths.longest()), (3, 3));
        let found = rows(&lengths, &[(0, 0, 1), (1, 1, 3)]);
        assert_eq!(found[0], [0.0, 0.1, 9.0, 9.1, 9.0, 9.1]);
        assert_eq!(found[1], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]);
    }

    #[test]
    fn unpadded_rows_are_repeated_as_a_whole() {
        let lengths = Lengths::of(&plan(&[&[0], &[1]]), 1, &[2, 3], false).unwrap();
        assert_eq!((lengths.total(), lengths.longest()), (6, 3));
        let found = rows(&lengths, &[(0, 0, 2), (1, 1, 3)]);
        assert_eq!(found[0], [0.0, 0.1, 0.2, 0.3].repeat(3));
        assert_eq!(found[1], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5].repeat(2));
        assert!(!lengths.needs_empty(lengths.fill(0).unwrap(), 2));
    }

    #[test]
    fn parts_get_their_last_vector_and_schedules_empty_chunks() {
        // A negative prompt of one chunk; a schedule of texts of 1 and 2 chunks AND a part of 3 chunks.
        let lengths = Lengths::of(&plan(&[&[0], &[1, 2], &[3]]), 1, &[1, 1, 2, 3], false).unwrap();
        assert_eq!(lengths.total(), 3);
        assert!(lengths.needs_empty(lengths.fill(1).unwrap(), 1) && !lengths.needs_empty(lengths.fill(2).unwrap(), 3));
        let found = rows(&lengths, &[(0, 0, 1), (1, 1, 1), (1, 2, 2)]);
        assert_eq!(found[0], [0.0, 0.1].repeat(3));
        assert_eq!(found[1], [1.0, 1.1, 9.0, 9.1, 9.1, 9.1]);
        assert_eq!(found[2], [2.0, 2.1, 2.2, 2.3, 2.3, 2.3]);
    }

    #[test]
    fn images_of_a_batch_do_not_change_each_other() {
        // Two images: negative prompts of 1 and 1, prompts of 1 and 2 chunks, and parts of 2 and 1.
        let plan = plan(&[&[0], &[0], &[0], &[1], &[1], &[0]]);
        let lengths = Lengths::of(&plan, 2, &[1, 2], false).unwrap();
        let parts: Vec<usize> = lengths.rows.iter().map(|row| row.parts).collect();
        assert_eq!(parts, [1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn extreme_lengths_are_refused() {
        assert_eq!(Lengths::of(&plan(&[&[0], &[1]]), 1, &[1, 4000], false).unwrap().total(), 4000);
        assert_eq!(Lengths::of(&plan(&[&[0], &[1]]), 1, &[22, 23], false).unwrap().total(), 506);
        let message = Lengths::of(&plan(&[&[0], &[1]]), 1, &[4001, 4000], false).unwrap_err().to_string();
        assert!(
            message.starts_with("`pad_conds` is off, expected on: these prompts have 4000 and 4001 chunks"),
            "{message}"
        );
        assert!(Lengths::of(&plan(&[&[0], &[1]]), 1, &[4001, 4000], true).is_ok());
    }
}
