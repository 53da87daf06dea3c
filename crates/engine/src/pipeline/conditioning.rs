//! The denoiser's conditions at each step.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, GUIDANCE, TEXT_EMBEDS, TEXT_LENGTHS, TIME_IDS};
use kiln_network::text::{self, TextTensors};
use kiln_prompt::PromptSchedule;
use kiln_request::{ParsedPrompt, Region, SizeConditions};

use crate::error::Result;
use crate::pipeline::areas::{Areas, normalized};
use crate::pipeline::batch::Batch;

/// The texts of a batch, and for each row of the denoiser's batch the text at each step.
#[derive(Debug, Clone, Default)]
pub struct ConditioningPlan {
    /// The texts, each once.
    pub texts: Vec<String>,
    /// The unconditional rows `(n)` with guidance, then the conditional ones `(k n)`: the first part of every image,
    /// the second of every image.
    pub(crate) rows: Vec<Row>,
    /// The weight of each conditional row, `(k n)`; empty where each image has one part of weight 1.
    pub(crate) weights: Vec<f32>,
    /// Whether the first `n` rows are unconditional.
    pub(crate) guided: bool,
    /// The places of the parts, in their order. With them the parts are averaged, and each keeps the length of its own text.
    pub(crate) regions: Vec<Region>,
    /// Height of the images in pixels, which says how many pixels a latent covers. 0 without regions.
    pub(crate) height: usize,
}

/// The condition of one row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Row {
    /// Zeros, which SDXL takes instead of a missing negative prompt.
    Zeros,
    /// The texts' numbers, by a schedule, and those of the texts that are blended into each, with their weights.
    Texts { schedule: PromptSchedule, texts: Vec<usize>, blend: Vec<(usize, f32)> },
}

impl ConditioningPlan {
    /// The conditions of a batch's prompts. `zeros` says that a missing negative prompt is [`Row::Zeros`].
    ///
    /// `AND` makes a batch of `1 + k` rows an image; an image of fewer parts than others has parts of weight 0.
    pub(crate) fn of(batch: &Batch<'_>, zeros: bool) -> Self {
        let (mut plan, prompts) = (Self::default(), batch.prompts());
        let k = prompts.iter().map(|prompts| prompts.parts.len()).max().unwrap_or(1);
        let regions = &batch.job().regions;
        let is_weighted = match regions.is_empty() {
            true => prompts.iter().flat_map(|prompts| &prompts.parts).any(|part| part.weight != 1.0),
            false => regions.iter().any(Region::is_placed),
        };
        let composed = k > 1 || is_weighted;
        (plan.regions, plan.height) = (regions.clone(), batch.job().height);
        plan.guided = batch.job().is_guided() || composed;
        if plan.guided {
            for prompts in &prompts {
                let row = match prompts.negative_prompt {
                    None if zeros => Row::Zeros,
                    _ => plan.row(&prompts.negative),
                };
                plan.rows.push(row);
            }
        }
        for number in 0..k {
            for ParsedPrompt { parts, .. } in prompts.iter().map(Arc::as_ref) {
                let Some(part) = parts.get(number).or(parts.first()) else { continue };
                let blend = regions.get(number).map_or(&[][..], |region| &region.using.blend);
                let blend = blend.iter().map(|text| (plan.number(&text.text), text.weight as f32)).collect();
                let row = plan.blended_row(&part.schedule, blend);
                plan.rows.push(row);
                if composed {
                    plan.weights.push(parts.get(number).map_or(0.0, |part| part.weight as f32));
                }
            }
        }
        plan
    }

    /// `n` images with one text for all conditional rows, and, with guidance, one for all unconditional rows.
    pub fn plain(n: usize, prompt: &str, negative_prompt: Option<&str>) -> Self {
        let mut plan = Self { guided: negative_prompt.is_some(), ..Self::default() };
        for text in negative_prompt.into_iter().chain([prompt]) {
            let row = plan.row(&PromptSchedule::new(text, 1));
            plan.rows.extend(std::iter::repeat_n(row, n));
        }
        plan
    }

    /// The conditional rows of each of `n` images.
    pub(crate) fn parts(&self, n: usize) -> usize {
        (self.weights.len() / n.max(1)).max(1)
    }

    fn row(&mut self, schedule: &PromptSchedule) -> Row {
        self.blended_row(schedule, Vec::new())
    }

    fn blended_row(&mut self, schedule: &PromptSchedule, blend: Vec<(usize, f32)>) -> Row {
        let schedule = schedule.clone();
        let texts = schedule.ranges().iter().map(|stretch| self.number(&stretch.text)).collect();
        Row::Texts { schedule, texts, blend }
    }

    /// The number of a text, which is new or was there.
    pub(crate) fn number(&mut self, text: &str) -> usize {
        self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.into());
            self.texts.len() - 1
        })
    }
}

/// Which rows a step has for each image, besides the conditional ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StepRows {
    /// Whether the unconditional rows are there, before the conditional ones. A step that combines parts has them in any case.
    pub guided: bool,
    /// Whether the conditional rows are there once more, at the end: for perturbed attention.
    pub perturbed: bool,
    /// Whether they are there once more for skip-layer guidance. No network has both.
    pub skipped: bool,
}

impl StepRows {
    /// Whether the conditional rows are there once more.
    pub fn repeats(self) -> bool {
        self.perturbed || self.skipped
    }
}

/// The numbers that a network takes besides texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimeIds {
    /// None: Stable Diffusion 1 and 2.
    None,
    /// SDXL's sizes: original height and width, crop top and left, target height and width.
    Sizes,
    /// The numbers of SDXL's refiner: original height and width, crop top and left, and an aesthetic score.
    Scores {
        /// The score of conditional rows.
        conditional: f64,
        /// The score of unconditional rows.
        unconditional: f64,
    },
}

impl TimeIds {
    /// The numbers of unconditional and of conditional rows with these sizes.
    fn rows(self, sizes: [SizeConditions; 2]) -> Option<[Vec<f32>; 2]> {
        let row = |SizeConditions { original, crop, .. }: SizeConditions, more: &[f32]| {
            let size = [original.1, original.0, crop.top, crop.left].map(|pixels| pixels as f32);
            [&size[..], more].concat()
        };
        let [negative, positive] = sizes;
        match self {
            Self::None => None,
            Self::Sizes => Some(sizes.map(|of| row(of, &[of.target.1 as f32, of.target.0 as f32]))),
            Self::Scores { conditional, unconditional } => {
                Some([row(negative, &[unconditional as f32]), row(positive, &[conditional as f32])])
            }
        }
    }
}

/// The conditions that all rows of a batch have in common, besides their texts.
#[derive(Debug, Clone, Default)]
pub struct SharedConditions {
    /// The numbers of an unconditional and of a conditional row, each `(1, k)` in f32.
    time_ids: Option<[Tensor; 2]>,
    /// The guidance input of a distilled network, `(1)` in f32.
    guidance: Option<Tensor>,
    /// Its value.
    guidance_value: Option<f32>,
    /// Whether the network takes pooled texts.
    pooled: bool,
}

impl SharedConditions {
    /// The conditions of unconditional and of conditional rows with these sizes, for a network that takes these numbers, and
    /// its guidance input in its own unit ([`kiln_request::Job::guidance_input`]), if it takes one.
    ///
    /// # Errors
    /// [`crate::Error::Candle`] if the device has no memory.
    pub fn new(time_ids: TimeIds, sizes: [SizeConditions; 2], guidance: Option<f32>, device: &Device) -> Result<Self> {
        let row = |ids: &Vec<f32>| -> Result<Tensor> { Ok(Tensor::new(&ids[..], device)?.unsqueeze(0)?) };
        let time_ids = match time_ids.rows(sizes) {
            Some([unconditional, conditional]) => Some([row(&unconditional)?, row(&conditional)?]),
            None => None,
        };
        let guidance_value = guidance;
        let guidance = guidance_value.map(|value| Tensor::new(&[value], device)).transpose()?;
        let pooled = time_ids.is_some();
        Ok(Self { time_ids, guidance, guidance_value, pooled })
    }

    /// The conditions for a network that takes pooled texts, or takes none. Networks with numbers take them in any case.
    pub fn with_pooled(self, pooled: bool) -> Self {
        Self { pooled: pooled || self.time_ids.is_some(), ..self }
    }

    /// The inputs of rows with these texts, of which the first `unconditional` are unconditional: `context` `(b, s, d)` and
    /// pooled texts `(b, d)`, if the network takes them.
    ///
    /// # Errors
    /// Errors of `pooled`, and [`crate::Error::Candle`] for tensors of other shapes.
    pub fn inputs(
        &self,
        context: Tensor,
        unconditional: usize,
        pooled: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Inputs> {
        let rows = context.dim(0)?;
        let mut inputs = Inputs::new().with(CONTEXT, context);
        if let (Some(guidance), Some(value)) = (&self.guidance, self.guidance_value) {
            inputs = inputs.with_shared(GUIDANCE, u64::from(value.to_bits()), guidance.clone());
        }
        if self.pooled {
            inputs = inputs.with(TEXT_EMBEDS, pooled()?);
        }
        let Some(ids) = &self.time_ids else { return Ok(inputs) };
        let counts = [unconditional.min(rows), rows.saturating_sub(unconditional)];
        let parts = ids.iter().zip(counts).filter(|(_, count)| *count > 0);
        let parts = parts.map(|(ids, count)| Ok(ids.repeat((count, 1))?)).collect::<Result<Vec<_>>>()?;
        Ok(inputs.with(TIME_IDS, Tensor::cat(&parts, 0)?)) // (b, k)
    }
}

/// A batch's plan with its texts encoded.
pub struct Conditions {
    plan: ConditioningPlan,
    /// By a text's number. All of one length.
    encoded: Vec<TextTensors>,
    /// The values of [`Row::Zeros`].
    zeros: Option<TextTensors>,
    shared: SharedConditions,
    /// The text of each row that was handed out last.
    current: Vec<Option<usize>>,
    /// The weight of a word that differs most from 0.
    heaviest: f32,
}

impl Conditions {
    /// The conditions of a plan with its texts in the plan's order, all of one length.
    ///
    /// # Errors
    /// [`crate::Error::Candle`] where the device has no memory.
    pub fn new(plan: ConditioningPlan, encoded: Vec<TextTensors>, shared: SharedConditions) -> Result<Self> {
        let nothing = |like: &TextTensors| like.map(Tensor::zeros_like);
        let wanted = plan.rows.contains(&Row::Zeros);
        let zeros = encoded.first().filter(|_| wanted).map(nothing).transpose()?;
        Ok(Self { plan, encoded, zeros, shared, current: Vec::new(), heaviest: 1.0 })
    }

    /// Sets the weight of a word of their texts that differs most from 0.
    pub(crate) fn with_heaviest(self, heaviest: f32) -> Self {
        Self { heaviest, ..self }
    }

    /// The weight of a word that differs most from 0, for messages.
    pub(crate) fn heaviest(&self) -> f32 {
        self.heaviest
    }

    /// Whether the first rows are unconditional.
    pub(crate) fn is_guided(&self) -> bool {
        self.plan.guided
    }

    /// The rectangles of latents `(h, w)` for which parts are computed; `None` if all parts are computed for the whole image.
    ///
    /// # Errors
    /// [`crate::Error::Candle`] if the device has no memory.
    pub(crate) fn areas(&self, size: (usize, usize), device: &Device) -> Result<Option<Areas>> {
        let ConditioningPlan { regions, weights, height, .. } = &self.plan;
        if !self.is_composed() || !regions.iter().any(|region| region.using.has_area()) {
            return Ok(None);
        }
        Areas::new((regions, weights), self.unconditional(), (size, height / size.0.max(1)), device).map(Some)
    }

    /// The weight of each conditional row for latents `(c, h, w)`, `(k n, c, h, w)` in f32, if a row has another weight than 1 or an
    /// image has several. `None` with [`Self::areas`].
    pub(crate) fn weights(&self, (c, h, w): (usize, usize, usize), device: &Device) -> Result<Option<Tensor>> {
        let ConditioningPlan { regions, weights, height, .. } = &self.plan;
        if weights.is_empty() || regions.iter().any(|region| region.using.has_area()) {
            return Ok(None);
        }
        let rows = match regions.is_empty() {
            true => Tensor::from_slice(weights, (weights.len(), 1, 1, 1), &Device::Cpu)?,
            false => {
                let maps = normalized(regions, weights, self.unconditional(), ((h, w), height / h.max(1)));
                Tensor::from_vec(maps, (weights.len(), 1, h, w), &Device::Cpu)?
            }
        };
        Ok(Some(rows.broadcast_as((weights.len(), c, h, w))?.contiguous()?.to_device(device)?))
    }

    /// Whether a step combines several rows by their weights, which it does with guidance or without.
    pub(crate) fn is_composed(&self) -> bool {
        !self.plan.weights.is_empty()
    }

    /// Whether the conditions at `step`, counted from 0, differ from those that were handed out last.
    pub(crate) fn changes_at(&self, step: usize, rows: StepRows) -> bool {
        self.texts_at(step, rows) != self.current
    }

    /// The rows of a step with guidance or without. Weights are differences to the unconditional rows, so that a step
    /// which combines parts has those in any case.
    fn rows(&self, guided: bool) -> &[Row] {
        let ConditioningPlan { rows, .. } = &self.plan;
        let unconditional = if self.has_unconditional(guided) { 0 } else { self.unconditional() };
        &rows[unconditional..]
    }

    /// Whether a step with guidance or without has the unconditional rows, if there are any.
    fn has_unconditional(&self, guided: bool) -> bool {
        guided || self.is_composed()
    }

    /// The unconditional rows of each image in a step with guidance or without, before its conditional ones.
    pub(crate) fn unconditional_of_image(&self, guided: bool) -> usize {
        usize::from(self.plan.guided && self.has_unconditional(guided))
    }

    /// How many of all rows are unconditional: the first ones.
    fn unconditional(&self) -> usize {
        let ConditioningPlan { rows, weights, guided, .. } = &self.plan;
        match (guided, weights.len()) {
            (false, _) => 0,
            (true, 0) => rows.len() / 2,
            (true, conditional) => rows.len().saturating_sub(conditional),
        }
    }

    /// The number of each row's text at `step`.
    fn texts_at(&self, step: usize, of: StepRows) -> Vec<Option<usize>> {
        let text = |row: &Row| match row {
            Row::Zeros => None,
            Row::Texts { schedule, texts, .. } => texts.get(schedule.index_at(step)).copied(),
        };
        let conditional = &self.plan.rows[self.unconditional()..];
        let again = if of.repeats() { conditional } else { &[] };
        self.rows(of.guided).iter().chain(again).map(text).collect()
    }

    /// The inputs of these rows at `step`, counted from 0.
    pub(crate) fn at(&mut self, step: usize, of: StepRows) -> Result<Inputs> {
        let now = self.texts_at(step, of);
        let rows = now.iter().filter_map(|text| match text {
            Some(number) => self.encoded.get(*number),
            None => self.zeros.as_ref(),
        });
        let rows: Vec<&TextTensors> = rows.collect();
        let joined = |name: &str| -> Result<Tensor> {
            let parts: Vec<&Tensor> = rows.iter().filter_map(|encoded| encoded.get(name)).collect();
            Ok(Tensor::cat(&parts, 0)?)
        };
        let context = joined(text::CONTEXT)?;
        let unconditional = if self.has_unconditional(of.guided) { self.unconditional() } else { 0 };
        let mut inputs = self.shared.inputs(context, unconditional, || joined(text::POOLED))?;
        if rows.iter().any(|encoded| encoded.get(text::LENGTH).is_some()) {
            inputs = inputs.with(TEXT_LENGTHS, joined(text::LENGTH)?);
        }
        self.current = now;
        Ok(inputs)
    }
}
