//! The texts of a batch before they are encoded.

use std::sync::Arc;

use kiln_network::text::{PromptText, TextStage, Tokens};
use kiln_request::Job;

use crate::error::Result;
use crate::pipeline::batch::Batch;
use crate::pipeline::conditioning::{ConditioningPlan, Row};
use crate::pipeline::lengths::Lengths;
use crate::plan::{SecondPassWork, TextWork, Workload};

/// The properties of an image's texts that all images of a batch must share, or one image would change another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    first: PassShape,
    /// The texts of a second pass.
    second: Option<PassShape>,
    /// The texts for a refiner's text encoders.
    refiner: Option<TextWork>,
}

/// The properties of the texts of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PassShape {
    /// Whether parts are combined by weights.
    composed: bool,
    /// The texts of one image without schedules.
    text: TextWork,
}

impl PassShape {
    /// The texts of `n` such images, of which those at hand have `texts` different texts. More than one for each row are those of
    /// schedules: they are rounded up, so that batches that differ little have one plan.
    fn of_images(self, n: usize, texts: usize) -> TextWork {
        let usual = n * self.text.usual();
        TextWork { texts: if texts <= usual { usual } else { texts.next_power_of_two() }, ..self.text }
    }
}

impl Shape {
    /// The work of a batch of `n` such images of `job`, of which those at hand have `texts` different texts.
    pub(crate) fn work(self, job: &Job, n: usize, texts: usize) -> Workload {
        let work = Workload::of(job);
        let of_second = |work: SecondPassWork| match self.second {
            Some(second) => SecondPassWork { text: second.of_images(n, texts), ..work },
            None => work,
        };
        let TextWork { tokens, context, .. } = self.refiner.unwrap_or(self.first.text);
        let text = self.first.of_images(n, texts);
        let text = TextWork { tokens: tokens.max(text.tokens), context: context.max(text.context), ..text };
        Workload { batch_size: n, text, second: work.second.map(of_second), ..work }
    }

    /// The texts of one image in the first pass.
    pub(crate) fn text(&self) -> TextWork {
        self.first.text
    }

    /// The shape of images whose second pass has texts of the shape `second`.
    pub(crate) fn then(self, second: Option<Self>) -> Self {
        Self { second: second.map(|second| second.first), ..self }
    }
}

/// The texts of a batch, read and tokenized: its conditions, its shape and its work are made from this.
#[derive(Clone)]
pub(crate) struct TextPlan {
    pub(crate) conditions: ConditioningPlan,
    /// The conditions' texts, and behind them the empty text where only shorter texts need it.
    pub(crate) texts: Vec<(PromptText, Arc<Tokens>)>,
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
    /// Errors of `tokens`, and [`crate::Error::Request`] for texts of extreme lengths.
    pub(crate) fn new(
        batch: &Batch<'_>,
        conditions: ConditioningPlan,
        stage: &dyn TextStage,
        mut tokens: impl FnMut(&str) -> Result<(PromptText, Arc<Tokens>)>,
    ) -> Result<Self> {
        let n = batch.len();
        let mut texts = conditions.texts.iter().map(|text| tokens(text)).collect::<Result<Vec<_>>>()?;
        let own: Vec<usize> = texts.iter().map(|(_, tokens)| tokens.length()).collect();
        let lengths = Lengths::of(&conditions, n, &own, batch.job().pad_conds, stage)?;
        let empty = if needs_empty(&conditions, (&lengths, &own), stage) {
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

    /// The properties that images of one batch share.
    pub(crate) fn shape(&self) -> Shape {
        let Self { conditions, lengths, n, .. } = self;
        let text = TextWork { parts: conditions.parts(*n), ..TextWork::short(conditions.guided) };
        let text = TextWork { tokens: lengths.longest(), context: lengths.total(), texts: text.usual(), ..text };
        let first = PassShape { composed: !conditions.weights.is_empty(), text };
        Shape { first, second: None, refiner: None }
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

    /// The properties that images of one batch share.
    pub(crate) fn shape(&self) -> Shape {
        let refiner = self.refiner.as_ref().map(|plan| plan.shape().text());
        Shape { refiner, ..self.base.shape() }
    }
}

/// Whether a text of some row is filled up with the empty text. `own` are the texts' lengths.
fn needs_empty(plan: &ConditioningPlan, (lengths, own): (&Lengths, &[usize]), stage: &dyn TextStage) -> bool {
    let in_row = |(i, row): (usize, &Row)| match (row, lengths.fill(i)) {
        (Row::Texts { texts, .. }, Some(fill)) => {
            texts.iter().filter_map(|&text| own.get(text)).any(|&length| stage.needs_empty(length, &fill))
        }
        _ => false,
    };
    plan.rows.iter().enumerate().any(in_row)
}
