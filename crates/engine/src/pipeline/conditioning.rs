//! What steers the denoiser at each step.

use candle_core::{Device, Tensor};
use kiln_clip::prompt::{PromptSchedule, expand, subprompts, take_tags};
use kiln_unet::{AddedConditions, Conditioning};

use crate::error::Result;
use crate::pipeline::batch::Together;
use crate::pipeline::text_cache::Encoded;
use crate::resolved::Job;

/// The texts of a batch, and which of them steers which row of the denoiser's batch when.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// All different.
    pub(crate) texts: Vec<String>,
    /// The unconditional rows `(n)` where there is guidance, then the conditional ones `(k n)`: the first part of every
    /// image, the second of every image.
    pub(crate) rows: Vec<Row>,
    /// How strongly each conditional row steers, `(k n)`; empty where there is one part of weight 1 an image.
    pub(crate) weights: Vec<f32>,
    /// Whether the first `n` rows are unconditional.
    pub(crate) guided: bool,
}

/// What steers one row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Row {
    /// Nothing: SDXL's zeros in the place of a missing negative prompt.
    Zeros,
    /// The texts' numbers, by a schedule.
    Texts { schedule: PromptSchedule, texts: Vec<usize> },
}

impl Steering {
    /// Reads the prompts of the images that are made `together`. `zeros` says that a missing negative prompt is
    /// [`Row::Zeros`].
    ///
    /// `AND` makes a batch of `1 + k` rows an image; an image of fewer parts than others has parts that weigh nothing.
    pub(crate) fn of(together: &Together<'_>, zeros: bool) -> Self {
        let (mut steering, job, prompts) = (Self::default(), together.job(), together.prompts());
        let parts: Vec<Vec<_>> = prompts.iter().map(|prompts| subprompts(&take_tags(&prompts.prompt).0)).collect();
        let k = parts.iter().map(Vec::len).max().unwrap_or(1);
        let composed = parts.iter().flatten().any(|part| part.weight != 1.0) || k > 1;
        steering.guided = job.is_guided() || composed;
        if steering.guided {
            for Prompts { negative_prompt, .. } in &prompts {
                let row = match negative_prompt {
                    None if zeros => Row::Zeros,
                    text => steering.row(text.as_deref().unwrap_or(""), job.steps),
                };
                steering.rows.push(row);
            }
        }
        for part in 0..k {
            for parts in &parts {
                let row = steering.row(&parts.get(part).unwrap_or(&parts[0]).text, job.steps);
                steering.rows.push(row);
                if composed {
                    steering.weights.push(parts.get(part).map_or(0.0, |part| part.weight as f32));
                }
            }
        }
        steering
    }

    /// The conditional rows of each of `n` images.
    pub(crate) fn parts(&self, n: usize) -> usize {
        (self.weights.len() / n.max(1)).max(1)
    }

    fn row(&mut self, prompt: &str, steps: usize) -> Row {
        let schedule = PromptSchedule::new(prompt, steps);
        let texts = schedule.stretches().iter().map(|stretch| self.number(&stretch.text)).collect();
        Row::Texts { schedule, texts }
    }

    /// The number of a text, which is new or was there.
    pub(crate) fn number(&mut self, text: &str) -> usize {
        self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.into());
            self.texts.len() - 1
        })
    }
}

/// The prompts of one picture: the job's, with their choices made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompts {
    pub(crate) prompt: String,
    pub(crate) negative_prompt: Option<String>,
}

impl Prompts {
    /// Of picture `index`. The negative prompt draws from a sequence of its own, so that a choice added to the one
    /// changes nothing in the other.
    pub(crate) fn of(job: &Job, index: usize) -> Self {
        const NEGATIVE: u64 = 1 << 63;
        let (seed, lists) = (job.seed_of(index), |name: &str| job.wildcards.get(name));
        let made =
            |text: &String, literal: bool, seed: u64| if literal { text.clone() } else { expand(text, seed, &lists) };
        let literal = job.literal_negative_prompt;
        let negative_prompt = job.negative_prompt.as_ref().map(|text| made(text, literal, seed ^ NEGATIVE));
        Self { prompt: made(&job.prompt, job.literal_prompt, seed), negative_prompt }
    }
}

/// A batch's steering with its texts encoded.
pub(crate) struct Conditions {
    steering: Steering,
    /// By a text's number. All of one length.
    encoded: Vec<Encoded>,
    /// What [`Row::Zeros`] is.
    zeros: Option<Encoded>,
    /// SDXL's sizes: `(1, 6)`.
    time_ids: Option<Tensor>,
    /// What a distilled network takes as the strength of the guidance, `(1)`.
    guidance: Option<Tensor>,
    /// The text of each row that was handed out last.
    current: Vec<Option<usize>>,
}

impl Conditions {
    /// `encoded` are the steering's texts, all of one length; `time_ids` `(1, 6)` are there for SDXL, `guidance` `(1)` for
    /// distilled networks.
    pub(crate) fn new(
        steering: Steering,
        encoded: Vec<Encoded>,
        time_ids: Option<Tensor>,
        guidance: Option<Tensor>,
    ) -> Result<Self> {
        let nothing = |like: &Encoded| -> Result<_> {
            Ok(Encoded { context: like.context.zeros_like()?, pooled: like.pooled.zeros_like()? })
        };
        let wanted = steering.rows.contains(&Row::Zeros);
        let zeros = encoded.first().filter(|_| wanted).map(nothing).transpose()?;
        Ok(Self { steering, encoded, zeros, time_ids, guidance, current: Vec::new() })
    }

    /// Whether the first rows are unconditional.
    pub(crate) fn is_guided(&self) -> bool {
        self.steering.guided
    }

    /// How strongly each conditional row of latents `(c, h, w)` steers, `(k n, c, h, w)` in f32, where that is not 1 for a
    /// single one.
    pub(crate) fn weights(&self, (c, h, w): (usize, usize, usize), device: &Device) -> Result<Option<Tensor>> {
        let weights = &self.steering.weights;
        if weights.is_empty() {
            return Ok(None);
        }
        let rows = Tensor::from_slice(weights, (weights.len(), 1, 1, 1), &Device::Cpu)?;
        Ok(Some(rows.broadcast_as((weights.len(), c, h, w))?.contiguous()?.to_device(device)?))
    }

    /// Whether a step combines several rows by their weights, which it does with guidance or without.
    pub(crate) fn is_composed(&self) -> bool {
        !self.steering.weights.is_empty()
    }

    /// Whether what steers at `step`, counted from 0, is not what was handed out last.
    pub(crate) fn changes_at(&self, step: usize, guided: bool) -> bool {
        self.texts_at(step, guided) != self.current
    }

    /// The rows of a step with guidance or without. Weights are differences to the unconditional rows, so that a step
    /// which combines parts has those in any case.
    fn rows(&self, guided: bool) -> &[Row] {
        let Steering { rows, .. } = &self.steering;
        let unconditional = if self.steering.guided && !self.is_composed() { rows.len() / 2 } else { 0 };
        if guided { rows } else { &rows[unconditional..] }
    }

    /// The number of each row's text at `step`.
    fn texts_at(&self, step: usize, guided: bool) -> Vec<Option<usize>> {
        let text = |row: &Row| match row {
            Row::Zeros => None,
            Row::Texts { schedule, texts } => texts.get(schedule.index_at(step)).copied(),
        };
        self.rows(guided).iter().map(text).collect()
    }

    /// What steers at `step`, counted from 0: the unconditional rows first where it is `guided` or combines parts, else
    /// the conditional ones alone.
    pub(crate) fn at(&mut self, step: usize, guided: bool) -> Result<Conditioning> {
        let now = self.texts_at(step, guided);
        let rows = now.iter().filter_map(|text| match text {
            Some(number) => self.encoded.get(*number),
            None => self.zeros.as_ref(),
        });
        let rows: Vec<&Encoded> = rows.collect();
        let joined = |part: fn(&Encoded) -> &Tensor| -> Result<Tensor> {
            let parts: Vec<&Tensor> = rows.iter().map(|&encoded| part(encoded)).collect();
            Ok(Tensor::cat(&parts, 0)?)
        };
        let added = self.time_ids.as_ref().map(|time_ids| -> Result<_> {
            let time_ids = time_ids.repeat((rows.len(), 1))?; // (b, 6)
            Ok(AddedConditions { text_embeds: joined(|encoded| &encoded.pooled)?, time_ids })
        });
        let (context, guidance) = (joined(|encoded| &encoded.context)?, self.guidance.clone());
        let conditioning = Conditioning { context, added: added.transpose()?, guidance };
        self.current = now;
        Ok(conditioning)
    }
}

/// The step that a call of the denoiser belongs to: samplers of second order call it more than once a step, and their
/// calls are spread evenly over the steps.
pub(crate) fn step_of(call: usize, calls: usize, steps: usize) -> usize {
    call * steps / calls.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_belong_to_steps() {
        let steps = |calls, steps| (0..calls).map(|call| step_of(call, calls, steps)).collect::<Vec<_>>();
        assert_eq!(steps(4, 4), [0, 1, 2, 3]);
        assert_eq!(steps(7, 4), [0, 0, 1, 1, 2, 2, 3]); // Heun: the last step is Euler's
        assert_eq!(steps(5, 4), [0, 0, 1, 2, 3]); // PLMS: the first step is taken twice
        for n in 1..60 {
            let heun = steps(2 * n - 1, n);
            assert!(heun.iter().enumerate().all(|(call, &step)| step == call / 2), "{heun:?}");
        }
    }
}
