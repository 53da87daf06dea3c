//! Prompts to the denoiser's conditions.

use std::collections::VecDeque;
use std::sync::Arc;

use candle_core::{DType, Device};
use kiln_models::ModelFolder;
use kiln_network::text::{PromptText, TextNetwork, TextStage, TextTensors, Tokens};
use kiln_request::{Job, RefinerOptions};
use kiln_unet::{SCORE_TIME_IDS, UnetConfig};
use kiln_weights::{Lora, Network, Placement};

use crate::component::{ComponentOptions, LoadedComponent, WeightResidency};
use crate::component_spec::ComponentSpec;
use crate::error::{Error, Result};
use crate::pipeline::batch::Batch;
use crate::pipeline::blended_texts::blend;
use crate::pipeline::conditioning::{ConditioningPlan, Conditions, SharedConditions, TimeIds};
use crate::pipeline::shared_texts::{SharedTexts, TextShape};
use crate::pipeline::text_cache::{CacheCounts, PromptCache};
use crate::pipeline::text_plan::TextPlan;
use crate::pipeline::text_stage::{Proceed, encode, on_device};
use crate::pipeline::tokens::TokenizedTexts;
use crate::plan::{SecondPassWork, TextWork, Workload};
use crate::words::Embeddings;

/// A model's text encoders with their tokenizers.
pub(crate) struct TextEncoders {
    stage: Box<dyn TextStage>,
    /// The weights of the stage's networks.
    parts: Vec<LoadedComponent>,
    /// How many numbers the denoiser takes besides texts.
    time_ids: usize,
    /// Whether the denoiser takes pooled texts.
    takes_pooled: bool,
    zeros_for_no_negative: bool,
    /// The type of the encoders' weights and of their results.
    dtype: DType,
    /// Where conditions go; the encoders' own device may be another one.
    device: Device,
    embeddings: Embeddings,
    tokenized: TokenizedTexts,
    cache: PromptCache,
    /// The texts that other processes have encoded.
    shared: Option<SharedTexts>,
    /// Whether the weights are the model's own, without LoRAs.
    own_weights: bool,
    /// Texts that will be asked for.
    ahead: VecDeque<PromptText>,
    /// Whether these are encoded by [`Self::encode_next`] alone, not with the next text that is needed.
    overlapped: bool,
    /// Whether texts of many jobs are encoded.
    has_foreseen: bool,
}

/// The rows of a call for texts of many jobs. A step of as many images has larger activations.
const ROWS_OF_CALL: usize = 16;

impl TextEncoders {
    /// Opens a model's text encoders, which remember `cached_texts` texts; what they give goes to the device of the second
    /// place. No weights are read.
    pub(crate) fn open(
        model: &ModelFolder,
        [placement, conditions]: [&Placement; 2],
        options: &ComponentOptions,
        embeddings: Embeddings,
        cached_texts: usize,
    ) -> Result<Self> {
        let stage = model.text_stage()?;
        log_place(placement);
        let part = |(i, network): (usize, TextNetwork<'_>)| -> Result<LoadedComponent> {
            let (source, name) = (model.files().text_encoder(i)?, format!("text encoder {i}"));
            let spec = ComponentSpec::TEXT;
            let part = LoadedComponent::shared(spec, network.segments, source, placement, options, &name);
            part.check()?;
            Ok(part)
        };
        let parts = stage.networks().into_iter().enumerate().map(part).collect::<Result<_>>()?;
        let device = conditions.device.clone();
        Ok(Self::of_stage(model, (stage, parts), (placement.dtype, device), embeddings, cached_texts))
    }

    /// A stage with the weights of its networks in `dtype`, for texts on `device`.
    pub(super) fn of_stage(
        model: &ModelFolder,
        (stage, parts): (Box<dyn TextStage>, Vec<LoadedComponent>),
        (dtype, device): (DType, Device),
        embeddings: Embeddings,
        cached_texts: usize,
    ) -> Self {
        Self {
            time_ids: model.unet_config().map_or(0, UnetConfig::time_ids),
            takes_pooled: model.denoiser_config().text().pooled.is_some(),
            zeros_for_no_negative: model.zeros_for_no_negative(),
            dtype,
            device,
            stage,
            parts,
            embeddings,
            tokenized: TokenizedTexts::default(),
            cache: PromptCache::new(cached_texts),
            shared: None,
            own_weights: true,
            ahead: VecDeque::new(),
            overlapped: false,
            has_foreseen: false,
        }
    }

    /// The weights, encoder by encoder.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &LoadedComponent> {
        self.parts.iter()
    }

    /// The encoders' names for LoRAs and embeddings, with their weights.
    pub(crate) fn networks(&self) -> impl Iterator<Item = (Network, &LoadedComponent)> {
        let named = self.stage.networks().into_iter().map(|network| network.network).collect::<Vec<_>>();
        named.into_iter().zip(&self.parts).filter_map(|(network, part)| Some((network?, part)))
    }

    /// Takes the words of these LoRAs in the place of those before, and forgets texts that they may change: encoded ones
    /// where the text encoders' `weights` changed, and all of them where words changed.
    pub(crate) fn set_loras<'a>(&mut self, loras: impl Iterator<Item = &'a Arc<Lora>>, weights: bool) {
        let loras: Vec<&Arc<Lora>> = loras.collect();
        self.own_weights = loras.is_empty();
        let words = self.embeddings.set_loras(loras.into_iter());
        if words {
            self.tokenized.clear();
        }
        if words || weights {
            self.cache.clear();
        }
    }

    /// Reads and tokenizes the texts of a batch.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for an option without effect on these text encoders and for texts of extreme lengths, and
    /// errors of tokenizers and embeddings.
    pub(crate) fn plan(&mut self, batch: &Batch<'_>) -> Result<TextPlan> {
        let ignored = self.stage.ignores();
        if let Some((name, found)) =
            batch.job().text_options().changed().into_iter().find(|(name, _)| ignored.contains(name))
        {
            return Err(Error::value(name, found, "no value: it has no effect on this model's text encoders"));
        }
        let conditions = ConditioningPlan::of(batch, self.zeros_for_no_negative);
        let stage = self.stage.as_ref();
        let tokens = |text: &str| {
            let text = key(stage, batch.job(), text);
            let tokens = self.tokenized.get(&text, stage, &self.embeddings)?;
            Ok((text, tokens))
        };
        TextPlan::new(batch, conditions, stage, tokens)
    }

    /// The work of a batch of `job`: the most of its batches, of which the first ones are looked at where each image has
    /// choices of its own. With the texts of the batches that were looked at, from the first on.
    ///
    /// # Errors
    /// See [`Self::plan`].
    pub(crate) fn work(&mut self, job: &Job) -> Result<(Workload, Vec<TextPlan>)> {
        const LOOKED_AT: usize = 8;
        let looked_at = if job.has_choices() { LOOKED_AT.min(job.batch_count) } else { 1 };
        let plan = |batch: usize| self.plan(&Batch::of_job(job, batch * job.batch_size));
        let plans = (0..looked_at).map(plan).collect::<Result<Vec<_>>>()?;
        let work = plans.iter().fold(Workload::of(job), |work, plan| {
            let text = TextWork { texts: plan.texts(), ..plan.shape().text() };
            Workload { text: work.text.max(text), ..work }
        });
        let second = match (work.second, Batch::of_job(job, 0).second()) {
            (Some(pass), Some(second)) => {
                let plan = self.plan(&second)?;
                let text = plan.shape().work(second.job(), second.len(), plan.texts()).text;
                Some(SecondPassWork { text, ..pass })
            }
            (second, _) => second,
        };
        let work = Workload { second, ..work };
        Ok((work, plans))
    }

    /// Has the texts of `jobs` encoded when texts are encoded next, as many as half of the cache has room for; or, where
    /// another thread encodes them while steps run (`overlapped`), by [`Self::encode_next`] alone.
    pub(crate) fn foresee<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>, overlapped: bool) {
        (self.overlapped, self.has_foreseen) = (overlapped, true);
        let room = self.cache.capacity() / 2;
        self.ahead.clear();
        for job in jobs.flat_map(Job::passes) {
            for text in ConditioningPlan::of(&Batch::of_jobs([job]), self.zeros_for_no_negative).texts {
                let key = key(self.stage.as_ref(), job, &text);
                if !self.ahead.contains(&key) && self.cache.peek(&key).is_none() {
                    self.ahead.push_back(key);
                }
            }
            if self.ahead.len() >= room {
                break;
            }
        }
        self.ahead.truncate(room);
    }

    /// Encodes the next texts that are foreseen and not known, at most `most` and those of one call, with weights that stay. Returns their
    /// number: 0 if none is left.
    ///
    /// # Errors
    /// Errors of the encoders; the texts are not tried again here.
    pub(crate) fn encode_next(&mut self, most: usize) -> Result<usize> {
        let most = most.min(self.rows_of_call().unwrap_or(1));
        let mut texts = Vec::new();
        while texts.len() < most
            && let Some(key) = self.ahead.pop_front()
        {
            if self.cache.peek(&key).is_none() {
                texts.push(self.tokens(key)?);
            }
        }
        let encoded = self.run(&texts, &WeightResidency::Whole, true, &mut |_, _| Ok(()))?;
        let count = texts.len();
        texts.into_iter().zip(encoded).for_each(|((key, _), encoded)| self.cache.put(key, encoded));
        Ok(count)
    }

    /// Shares encoded texts with other processes from now on.
    pub(crate) fn share(&mut self, shared: SharedTexts) {
        self.shared = Some(shared);
    }

    /// The shapes and the type of a text when it is encoded.
    fn shape_of(&self, tokens: &Tokens) -> TextShape {
        TextShape { tensors: self.stage.shapes(tokens.length()), dtype: self.dtype }
    }

    /// The store for a text: those that LoRAs or embeddings change are not shared.
    fn shared_for(&self, key: &PromptText) -> Option<&SharedTexts> {
        self.shared.as_ref().filter(|_| self.own_weights && !self.embeddings.are_named_in(&key.text))
    }

    /// Takes the texts of a batch that are not known from the store, where it has them.
    pub(crate) fn fetch(&mut self, plan: &TextPlan) {
        if plan.texts.len() > self.cache.capacity() {
            return;
        }
        for (key, tokens) in &plan.texts {
            let found = match self.cache.peek(key) {
                Some(_) => None,
                None => self.shared_for(key).and_then(|shared| shared.get(key, &self.shape_of(tokens))),
            };
            if let Some(encoded) = found {
                self.cache.adopt(key.clone(), encoded);
            }
        }
    }

    /// Whether all texts of a batch are encoded already, so that no weights are needed.
    pub(crate) fn knows(&self, plan: &TextPlan) -> bool {
        plan.texts.iter().all(|(key, _)| self.cache.peek(key).is_some())
    }

    /// How often a text was encoded, and how often it was there.
    pub(crate) fn counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Encodes the texts of a batch of `job` that are not known, and makes them equally long ([`Lengths`]). An
    /// encoder's weights are read when its turn comes; unless they are to be `kept`, they go after it. `proceed` may stop
    /// between texts.
    pub(crate) fn conditions(
        &mut self,
        job: &Job,
        plan: TextPlan,
        keep: &WeightResidency,
        kept: bool,
        proceed: &mut Proceed<'_>,
    ) -> Result<Conditions> {
        let encoded = self.encode(&plan.texts, keep, kept, proceed)?;
        let heaviest = plan.texts.iter().map(|(_, tokens)| tokens.heaviest());
        let heaviest = heaviest.fold(1.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
        let TextPlan { mut conditions, lengths, empty, .. } = plan;
        let empty = empty.and_then(|number| encoded.get(number)).cloned();
        let encoded = blend(&mut conditions, encoded)?;
        let encoded = lengths.fill_texts(&mut conditions, &encoded, empty.as_ref(), self.stage.as_ref())?;
        let there = |encoded: TextTensors| on_device(&encoded, &self.device);
        let encoded = encoded.into_iter().map(there).collect::<Result<_>>()?;
        let guidance = job.guidance_input();
        let RefinerOptions { aesthetic_score, negative_aesthetic_score, .. } = job.refining;
        let time_ids = match self.time_ids {
            0 => TimeIds::None,
            SCORE_TIME_IDS => TimeIds::Scores { conditional: aesthetic_score, unconditional: negative_aesthetic_score },
            _ => TimeIds::Sizes,
        };
        let shared = SharedConditions::new(time_ids, job.size_conditions(), guidance, &self.device)?
            .with_pooled(self.takes_pooled);
        Ok(Conditions::new(conditions, encoded, shared)?.with_heaviest(heaviest))
    }

    fn tokens(&mut self, text: PromptText) -> Result<(PromptText, Arc<Tokens>)> {
        let tokens = self.tokenized.get(&text, self.stage.as_ref(), &self.embeddings)?;
        Ok((text, tokens))
    }

    /// The texts, from the cache or from the encoders.
    fn encode(
        &mut self,
        texts: &[(PromptText, Arc<Tokens>)],
        keep: &WeightResidency,
        kept: bool,
        proceed: &mut Proceed<'_>,
    ) -> Result<Vec<TextTensors>> {
        let mut known: Vec<Option<TextTensors>> = texts.iter().map(|(key, _)| self.cache.get(key)).collect();
        let is_new = |(_, known): &(&(PromptText, Arc<Tokens>), &Option<TextTensors>)| known.is_none();
        let mut new: Vec<_> = texts.iter().zip(&known).filter(is_new).map(|(text, _)| text.clone()).collect();
        let asked = new.len();
        if asked > 0 && !self.overlapped {
            for key in std::mem::take(&mut self.ahead) {
                if self.cache.peek(&key).is_none() && texts.iter().all(|(asked, _)| *asked != key) {
                    // One that cannot be read is an error of its own job.
                    new.extend(self.tokens(key).ok());
                }
            }
        }
        let mut fresh = self.run(&new, keep, kept, proceed)?.into_iter();
        // More than there is room for would push each other out before they are asked for again.
        let is_kept = texts.len() <= self.cache.capacity();
        for ((key, _), known) in texts.iter().zip(&mut known) {
            if known.is_none() {
                *known = fresh.next();
                if let (Some(shared), Some(encoded)) = (self.shared_for(key), &known) {
                    shared.put(key, encoded);
                }
                match known.as_ref().filter(|_| is_kept) {
                    Some(encoded) => self.cache.put(key.clone(), encoded.clone()),
                    None => self.cache.pass(),
                }
            }
        }
        new.drain(asked..).zip(fresh).for_each(|((key, _), encoded)| self.cache.put(key, encoded));
        Ok(known.into_iter().flatten().collect())
    }

    /// Encodes texts that are not known.
    fn run(
        &self,
        texts: &[(PromptText, Arc<Tokens>)],
        keep: &WeightResidency,
        kept: bool,
        proceed: &mut Proceed<'_>,
    ) -> Result<Vec<TextTensors>> {
        let how = (keep, kept, self.rows_of_call());
        encode((self.stage.as_ref(), &self.parts), texts, how, &self.device, proceed)
    }

    /// The rows of each call if texts of many jobs are encoded on a GPU: it takes hardly longer for all of them than for one. They are the
    /// same in every memory mode, and so are the bits of a text.
    fn rows_of_call(&self) -> Option<usize> {
        let on_gpu = self.parts.iter().all(|part| part.placement().device.is_cuda());
        (self.has_foreseen && on_gpu).then_some(ROWS_OF_CALL)
    }
}

/// Logs where texts are encoded.
fn log_place(placement: &Placement) {
    let device = match &placement.backend {
        Some(backend) => backend.name().to_string(),
        None => format!("{:?}", placement.device),
    };
    tracing::info!(device, dtype = placement.dtype.as_str(), "text encoders");
}

/// A text of a job with the options that decide on its encoding by `stage`.
fn key(stage: &dyn TextStage, job: &Job, text: &str) -> PromptText {
    PromptText { text: text.into(), options: stage.effective(job.text_options()), images: job.text_images() }
}

#[cfg(test)]
mod tests;
