//! The texts of a batch before they are encoded.

use kiln_request::Job;
use std::sync::Arc;

use crate::error::Result;
use crate::pipeline::batch::Batch;
use crate::pipeline::conditioning::{ConditioningPlan, Row};
use crate::pipeline::lengths::Lengths;
use crate::pipeline::text_cache::Key;
use crate::pipeline::tokens::TextTokens;
use crate::plan::Workload;

/// The properties of an image's texts that all images of a batch must share, or one image would change another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    pub(crate) guided: bool,
    /// Whether parts are combined by weights.
    composed: bool,
    /// Parts of the image's prompt.
    pub(crate) parts: usize,
    /// Chunks of tokens of the longest text.
    pub(crate) chunks: usize,
    /// Chunks of every text in the batch, after shorter ones were filled up or repeated.
    pub(crate) context: usize,
    /// The same two numbers for a refiner's text encoders.
    refiner: Option<[usize; 2]>,
}

impl Shape {
    /// The work of a batch of `n` such images of `job`, of which those at hand have `texts` different texts. More than
    /// one for each row are those of schedules: they are rounded up, so that batches that differ little have one plan.
    pub(crate) fn work(self, job: &Job, n: usize, texts: usize) -> Workload {
        let Self { guided, parts, refiner, .. } = self;
        let [chunks, context] = refiner.unwrap_or_default();
        let (chunks, context) = (chunks.max(self.chunks), context.max(self.context));
        let usual = n * if guided { 1 + parts } else { 1 };
        let texts = if texts <= usual { usual } else { texts.next_power_of_two() };
        Workload { batch_size: n, guided, parts, chunks, context, texts, ..Workload::of(job) }
    }
}

/// The texts of a batch, read and tokenized: its conditions, its shape and its work are made from this.
#[derive(Clone)]
pub(crate) struct TextPlan {
    pub(crate) conditions: ConditioningPlan,
    /// The conditions' texts, and behind them the empty text where only shorter texts need it.
    pub(crate) texts: Vec<(Key, Arc<TextTokens>)>,
    pub(crate) lengths: Lengths,
    /// The number of the empty text, where shorter texts are filled up with it.
    pub(crate) empty: Option<usize>,
    /// Images of the batch.
    n: usize,
}

impl TextPlan {
    /// The texts of `conditions`, which are those of a batch; `tokens` gives a text's.
    ///
    /// # Errors
    /// Those of `tokens`, and [`crate::Error::Request`] for texts of extreme lengths.
    pub(crate) fn new(
        batch: &Batch<'_>,
        conditions: ConditioningPlan,
        mut tokens: impl FnMut(&str) -> Result<(Key, Arc<TextTokens>)>,
    ) -> Result<Self> {
        let n = batch.len();
        let mut texts = conditions.texts.iter().map(|text| tokens(text)).collect::<Result<Vec<_>>>()?;
        let chunks: Vec<usize> = texts.iter().map(|(_, tokens)| tokens.count()).collect();
        let lengths = Lengths::of(&conditions, n, &chunks, batch.job().pad_conds)?;
        let empty = if needs_empty(&conditions, &lengths, &chunks) {
            let known = conditions.texts.iter().position(String::is_empty);
            if known.is_none() {
                texts.push(tokens("")?);
            }
            Some(known.unwrap_or(texts.len() - 1))
        } else {
            None
        };
        Ok(Self { conditions, texts, lengths, empty, n })
    }

    /// How many different texts the conditions have.
    pub(crate) fn texts(&self) -> usize {
        self.conditions.texts.len()
    }

    /// What the images need to have in common with others.
    pub(crate) fn shape(&self) -> Shape {
        let Self { conditions, lengths, n, .. } = self;
        Shape {
            guided: conditions.guided,
            composed: !conditions.weights.is_empty(),
            parts: conditions.parts(*n),
            chunks: lengths.longest(),
            context: lengths.total(),
            refiner: None,
        }
    }
}

/// The texts of a batch as each of a run's models takes them.
#[derive(Clone)]
pub(crate) struct BatchTexts {
    /// For the engine's own model.
    pub(crate) base: TextPlan,
    /// For the refiner, where there is one.
    pub(crate) refiner: Option<TextPlan>,
}

impl BatchTexts {
    /// How many different texts there are for a model.
    pub(crate) fn texts(&self) -> usize {
        self.refiner.as_ref().map_or(0, TextPlan::texts).max(self.base.texts())
    }

    /// What the images need to have in common with others.
    pub(crate) fn shape(&self) -> Shape {
        let refiner = self.refiner.as_ref().map(TextPlan::shape).map(|shape| [shape.chunks, shape.context]);
        Shape { refiner, ..self.base.shape() }
    }
}

/// Whether a text of some row gets empty chunks behind it.
fn needs_empty(plan: &ConditioningPlan, lengths: &Lengths, chunks: &[usize]) -> bool {
    let in_row = |(i, row): (usize, &Row)| match (row, lengths.fill(i)) {
        (Row::Texts { texts, .. }, Some(fill)) => {
            texts.iter().filter_map(|&text| chunks.get(text)).any(|&chunks| lengths.needs_empty(fill, chunks))
        }
        _ => false,
    };
    plan.rows.iter().enumerate().any(in_row)
}
