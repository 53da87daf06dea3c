//! Texts of unequal length: how long each row of the denoiser's batch is, in context tokens.
//!
//! A batch has one tensor of text for all of its rows, so that all rows have one length. AUTOMATIC1111's web UI 1.10 makes
//! it in these steps (`modules/sd_hijack_clip.py`, `modules/prompt_parser.py` in `reconstruct_multicond_batch`,
//! `modules/sd_samplers_cfg_denoiser.py` in `pad_cond_uncond`):
//!
//! 1. The texts of one schedule get empty chunks up to the longest of them.
//! 2. The parts of a prompt (`AND`) get copies of their last token's vector up to the longest part.
//!    With regions, as in ComfyUI, they keep their own lengths.
//! 3. The prompt and the negative prompt get empty chunks up to the longer one if the option "Pad prompt/negative prompt"
//!    is on. If it is off, which is the default there, each is run with its own length.
//!
//! The text stage says how long all rows are ([`TextStage::fit`]) and makes texts so long ([`TextStage::fill`]).

use std::collections::HashMap;

use kiln_network::text::{Fill, TextStage, TextTensors};

use crate::error::Result;
use crate::pipeline::conditioning::{ConditioningPlan, Row};

/// How long the rows of a batch are, in context tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Of each row.
    rows: Vec<Fill>,
    /// The longest text.
    longest: usize,
    /// The tokens of every row in the end.
    total: usize,
}

impl Lengths {
    /// Of the rows of `n` images whose texts have these `lengths` in context tokens, by the texts' numbers.
    ///
    /// # Errors
    /// [`crate::Error::Request`] if the stage cannot make rows of these lengths equally long.
    pub(crate) fn of(
        plan: &ConditioningPlan,
        n: usize,
        lengths: &[usize],
        padded: bool,
        stage: &dyn TextStage,
    ) -> Result<Self> {
        let least = stage.least();
        let own = |row: &Row| match row {
            // Zeros of any length have the same effect: without keys and values there is nothing to attend to.
            Row::Zeros => least,
            Row::Texts { texts, .. } => {
                texts.iter().filter_map(|&text| lengths.get(text)).copied().max().unwrap_or(least)
            }
        };
        let own: Vec<usize> = plan.rows.iter().map(own).collect();
        let unconditional = if plan.guided { n.min(own.len()) } else { 0 };
        let parts = |(i, &length): (usize, &usize)| {
            if !plan.regions.is_empty() {
                return length;
            }
            let image = |row: usize| (row - unconditional) % n.max(1);
            let together = own.iter().enumerate().skip(unconditional).filter(|(row, _)| image(*row) == image(i));
            if i < unconditional { length } else { together.map(|(_, &own)| own).max().unwrap_or(length) }
        };
        let parts: Vec<usize> = own.iter().enumerate().map(parts).collect();
        let longest = parts.iter().copied().max().unwrap_or(least);
        let total = stage.fit(&parts, padded)?;
        let rows = own.into_iter().zip(parts).map(|(own, parts)| Fill { own, parts, total, padded }).collect();
        Ok(Self { rows, longest, total })
    }

    /// The tokens of the longest text.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The tokens of every row.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// How texts of row `i` are filled up.
    pub(crate) fn fill(&self, i: usize) -> Option<Fill> {
        self.rows.get(i).copied()
    }

    /// All texts as long as their rows. `empty` is the empty text, if one is needed. A text that is filled up in two ways becomes
    /// two: the rows get the numbers of theirs.
    pub(crate) fn fill_texts(
        &self,
        plan: &mut ConditioningPlan,
        encoded: &[TextTensors],
        empty: Option<&TextTensors>,
        stage: &dyn TextStage,
    ) -> Result<Vec<TextTensors>> {
        let (mut all, mut numbers): (Vec<TextTensors>, HashMap<(usize, Fill), usize>) = Default::default();
        for (i, row) in plan.rows.iter_mut().enumerate() {
            let (Row::Texts { texts, .. }, Some(fill)) = (row, self.fill(i)) else { continue };
            for text in texts {
                *text = match (numbers.get(&(*text, fill)), encoded.get(*text)) {
                    (Some(&number), _) => number,
                    (None, Some(encoded)) => {
                        all.push(stage.fill(encoded, &fill, empty)?);
                        numbers.insert((*text, fill), all.len() - 1);
                        all.len() - 1
                    }
                    (None, None) => continue,
                };
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use kiln_clip::{ClipEncoder, ClipText, HiddenLayer, TextEncoder, TextEncoderConfig};
    use kiln_network::text::CONTEXT;
    use kiln_prompt::PromptSchedule;

    use super::*;

    /// A stage with chunks of two tokens.
    fn stage() -> ClipText {
        let config = TextEncoderConfig {
            hidden_size: 4,
            intermediate_size: 4,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            max_position_embeddings: 2,
            ..TextEncoderConfig::default()
        };
        let encoder = TextEncoder::new(config).unwrap();
        ClipText::new(vec![ClipEncoder { encoder, tokenizer: None, network: None }], HiddenLayer::LAST)
    }

    fn lengths(plan: &ConditioningPlan, n: usize, chunks: &[usize], padded: bool) -> Result<Lengths> {
        let tokens: Vec<usize> = chunks.iter().map(|chunks| 2 * chunks).collect();
        Lengths::of(plan, n, &tokens, padded, &stage())
    }

    /// Rows of one image: the negative prompt's text, then one of each part.
    fn plan(rows: &[&[usize]]) -> ConditioningPlan {
        let row = |texts: &&[usize]| Row::Texts {
            schedule: PromptSchedule::new("a", 4),
            texts: texts.to_vec(),
            blend: Vec::new(),
        };
        ConditioningPlan { rows: rows.iter().map(row).collect(), guided: true, ..ConditioningPlan::default() }
    }

    /// Texts of one value a token, chunks of two tokens, in which the number is the text's and the decimal its place.
    fn text(number: usize, chunks: usize) -> TextTensors {
        let values: Vec<f32> = (0..2 * chunks).map(|i| number as f32 + i as f32 / 10.0).collect();
        let context = Tensor::new(values, &Device::Cpu).unwrap().reshape((1, 2 * chunks, 1)).unwrap();
        TextTensors::default().with(CONTEXT, context)
    }

    fn rows(lengths: &Lengths, texts: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
        let empty = text(9, 1);
        let row = |&(row, number, chunks): &(usize, usize, usize)| {
            let filled = stage().fill(&text(number, chunks), &lengths.fill(row).unwrap(), Some(&empty)).unwrap();
            filled.get(CONTEXT).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        texts.iter().map(row).collect()
    }

    #[test]
    fn padded_rows_have_empty_chunks_behind() {
        let lengths = lengths(&plan(&[&[0], &[1]]), 1, &[1, 3], true).unwrap();
        assert_eq!((lengths.total(), lengths.longest()), (6, 6));
        let found = rows(&lengths, &[(0, 0, 1), (1, 1, 3)]);
        assert_eq!(found[0], [0.0, 0.1, 9.0, 9.1, 9.0, 9.1]);
        assert_eq!(found[1], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]);
    }

    #[test]
    fn unpadded_rows_are_repeated_as_a_whole() {
        let lengths = lengths(&plan(&[&[0], &[1]]), 1, &[2, 3], false).unwrap();
        assert_eq!((lengths.total(), lengths.longest()), (12, 6));
        let found = rows(&lengths, &[(0, 0, 2), (1, 1, 3)]);
        assert_eq!(found[0], [0.0, 0.1, 0.2, 0.3].repeat(3));
        assert_eq!(found[1], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5].repeat(2));
        assert!(!stage().needs_empty(4, &lengths.fill(0).unwrap()));
    }

    #[test]
    fn parts_get_their_last_vector_and_schedules_empty_chunks() {
        // A negative prompt of one chunk; a schedule of texts of 1 and 2 chunks AND a part of 3 chunks.
        let lengths = lengths(&plan(&[&[0], &[1, 2], &[3]]), 1, &[1, 1, 2, 3], false).unwrap();
        assert_eq!(lengths.total(), 6);
        let needs_empty = |row: usize, chunks: usize| stage().needs_empty(2 * chunks, &lengths.fill(row).unwrap());
        assert!(needs_empty(1, 1) && !needs_empty(2, 3));
        let found = rows(&lengths, &[(0, 0, 1), (1, 1, 1), (1, 2, 2)]);
        assert_eq!(found[0], [0.0, 0.1].repeat(3));
        assert_eq!(found[1], [1.0, 1.1, 9.0, 9.1, 9.1, 9.1]);
        assert_eq!(found[2], [2.0, 2.1, 2.2, 2.3, 2.3, 2.3]);
    }

    #[test]
    fn images_of_a_batch_do_not_change_each_other() {
        // Two images: negative prompts of 1 and 1, prompts of 1 and 2 chunks, and parts of 2 and 1.
        let plan = plan(&[&[0], &[0], &[0], &[1], &[1], &[0]]);
        let lengths = lengths(&plan, 2, &[1, 2], false).unwrap();
        let parts: Vec<usize> = lengths.rows.iter().map(|row| row.parts / 2).collect();
        assert_eq!(parts, [1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn extreme_lengths_are_refused() {
        assert_eq!(lengths(&plan(&[&[0], &[1]]), 1, &[1, 4000], false).unwrap().total(), 2 * 4000);
        assert_eq!(lengths(&plan(&[&[0], &[1]]), 1, &[22, 23], false).unwrap().total(), 2 * 506);
        let error = lengths(&plan(&[&[0], &[1]]), 1, &[4001, 4000], false).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("`pad_conds` is off, expected on: these prompts have 4000 and 4001 chunks"),
            "{message}"
        );
        assert!(error.is_usage(), "the request is at fault");
        assert!(lengths(&plan(&[&[0], &[1]]), 1, &[4001, 4000], true).is_ok());
    }
}
