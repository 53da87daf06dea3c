//! Prompts to what steers the denoiser.

use candle_core::{D, Device, Tensor};
use kiln_clip::prompt::{self, Chunk, NoEmbeddings, Span};
use kiln_clip::{Emphasis, HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};
use kiln_weights::{KeyRule, Placement, Renamed, open_component};

use crate::conditioning::{Conditions, Steering};
use crate::error::Result;
use crate::model_folder::{Family, ModelFolder};
use crate::part::{Copies, Keep, Part};
use crate::plan::Work;
use crate::prompt_cache::{CacheCounts, Encoded, Key, PromptCache};
use crate::resolved::Job;

/// A model's text encoders with their tokenizers.
pub(crate) struct TextEncoders {
    family: Family,
    zeros_for_no_negative: bool,
    device: Device,
    encoders: Vec<Encoder>,
    cache: PromptCache,
}

struct Encoder {
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    part: Part,
}

impl TextEncoders {
    /// Opens a model's text encoders, which remember `cached_texts` texts. No weights are read.
    pub(crate) fn open(
        model: &ModelFolder,
        placement: &Placement,
        copies: &Copies,
        cached_texts: usize,
    ) -> Result<Self> {
        let open_one = |(i, config): (usize, &TextEncoderConfig)| -> Result<_> {
            let (weights, tokenizer) = model.text_folders(i);
            let (tokenizer, encoder) = (Tokenizer::open(&tokenizer)?, TextEncoder::new(config.clone())?);
            let source = Renamed::new(open_component(&weights)?, KeyRule::TEXT_MODEL);
            let part = Part::new(encoder.segments(), source, placement, copies);
            part.check()?;
            Ok(Encoder { tokenizer, encoder, part })
        };
        let configs = model.text_encoder_configs().iter().enumerate();
        Ok(Self {
            family: model.family(),
            zeros_for_no_negative: model.zeros_for_no_negative(),
            device: placement.device.clone(),
            encoders: configs.map(open_one).collect::<Result<_>>()?,
            cache: PromptCache::new(cached_texts),
        })
    }

    /// The weights, encoder by encoder.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.encoders.iter().map(|encoder| &encoder.part)
    }

    /// What steers `n` images of `job` from image `first` on, before any text is encoded.
    pub(crate) fn steering(&self, job: &Job, first: usize, n: usize) -> Steering {
        Steering::of(job, first, n, self.zeros_for_no_negative)
    }

    /// What a batch of `job` takes: the most of its batches, the first ones where each picture has choices of its own.
    pub(crate) fn work(&self, job: &Job) -> Result<Work> {
        const LOOKED_AT: usize = 8;
        let mut work = Work::of(job);
        let looked_at = if job.has_choices() { LOOKED_AT.min(job.batch_count) } else { 1 };
        for batch in 0..looked_at {
            let steering = self.steering(job, batch * job.batch_size, job.batch_size);
            work.guided |= steering.guided;
            work.parts = work.parts.max(steering.parts(job.batch_size));
            for (encoder, text) in
                self.encoders.iter().flat_map(|one| steering.texts.iter().map(move |text| (one, text)))
            {
                work.chunks = work.chunks.max(encoder.chunks(&self.key(job, text))?.len());
            }
        }
        Ok(work)
    }

    /// Whether all texts are encoded already, and the empty one if it is needed behind them, so that no weights are.
    pub(crate) fn knows(&self, job: &Job, steering: &Steering) -> bool {
        let length = |text: &str| self.cache.peek(&self.key(job, text)).map(|encoded| encoded.context.dims()[1]);
        let lengths: Option<Vec<usize>> = steering.texts.iter().map(|text| length(text)).collect();
        lengths.is_some_and(|lengths| lengths.windows(2).all(|pair| pair[0] == pair[1]) || length("").is_some())
    }

    /// How often a text was encoded, and how often it was there.
    pub(crate) fn counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Encodes the texts that are not known; all get as many chunks as the longest, with empty ones behind. An encoder's
    /// weights are read when its turn comes; unless they are to be `kept`, they go after it.
    pub(crate) fn conditions(
        &mut self,
        job: &Job,
        mut steering: Steering,
        keep: &Keep,
        kept: bool,
    ) -> Result<Conditions> {
        let mut encoded = self.encode(job, &steering.texts, keep, kept)?;
        let length = |encoded: &Encoded| encoded.context.dim(1);
        let lengths = encoded.iter().map(length).collect::<candle_core::Result<Vec<_>>>()?;
        let longest = lengths.iter().copied().max().unwrap_or_default();
        if lengths.iter().any(|&length| length < longest) {
            let number = steering.number("");
            if number == encoded.len() {
                encoded.extend(self.encode(job, &[String::new()], keep, kept)?);
            }
            let empty = encoded[number].context.clone();
            let chunk = empty.dim(1)?;
            for encoded in &mut encoded {
                let missing = (longest - length(encoded)?) / chunk;
                let mut chunks = vec![&encoded.context];
                chunks.extend(vec![&empty; missing]);
                encoded.context = Tensor::cat(&chunks, 1)?; // (1, longest, d)
            }
        }
        let time_ids = match self.family {
            Family::Sd => None,
            Family::Sdxl => {
                let (height, width) = (job.height as f32, job.width as f32);
                let time_ids = [height, width, 0.0, 0.0, height, width]; // original size, crop, target size
                Some(Tensor::new(&[time_ids], &self.device)?)
            }
        };
        Conditions::new(steering, encoded, time_ids)
    }

    fn key(&self, job: &Job, text: &str) -> Key {
        let layer = match (self.family, job.clip_skip) {
            (Family::Sd, None) => HiddenLayer::LAST,
            (Family::Sdxl, None) => HiddenLayer::PENULTIMATE,
            (family, Some(from_end)) => HiddenLayer { from_end, final_layer_norm: family == Family::Sd },
        };
        let Job { emphasis, comma_backtrack, .. } = *job;
        Key { text: text.into(), emphasis, layer, comma_backtrack }
    }

    /// The texts, from the cache or from the encoders.
    fn encode(&mut self, job: &Job, texts: &[String], keep: &Keep, kept: bool) -> Result<Vec<Encoded>> {
        let keys: Vec<Key> = texts.iter().map(|text| self.key(job, text)).collect();
        let mut known: Vec<Option<Encoded>> = keys.iter().map(|key| self.cache.get(key)).collect();
        let new: Vec<&Key> = keys.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(key, _)| key).collect();
        let mut fresh = self.run(&new, keep, kept)?.into_iter();
        for (key, known) in keys.iter().zip(&mut known) {
            if known.is_none() {
                *known = fresh.next();
                known.iter().for_each(|encoded| self.cache.put(key.clone(), encoded.clone()));
            }
        }
        Ok(known.into_iter().flatten().collect())
    }

    /// Runs the encoders, one after another.
    fn run(&self, keys: &[&Key], keep: &Keep, kept: bool) -> Result<Vec<Encoded>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let texts = |encoder: &Encoder| keys.iter().map(|key| encoder.chunks(key)).collect::<Result<Vec<_>>>();
        let mut chunks = self.encoders.iter().map(texts).collect::<Result<Vec<_>>>()?;
        let mut contexts = vec![Vec::new(); keys.len()];
        let mut pooled = Vec::new();
        for i in 0..keys.len() {
            // Tokenizers may disagree about a text; its chunks must not.
            let longest = chunks.iter().map(|texts| texts[i].len()).max().unwrap_or(1);
            for (texts, Encoder { tokenizer, .. }) in chunks.iter_mut().zip(&self.encoders) {
                let empty = prompt::chunks(tokenizer, &[], 0, &NoEmbeddings)?;
                let missing = longest - texts[i].len();
                texts[i].extend(empty.iter().cycle().take(missing).cloned());
            }
        }
        for (texts, Encoder { tokenizer, encoder, part }) in chunks.iter().zip(&self.encoders) {
            pooled.clear();
            part.enter(keep)?;
            for ((chunks, key), contexts) in texts.iter().zip(keys).zip(&mut contexts) {
                let empty = tokenizer.empty_chunk();
                let output = encoder.encode_weighted(chunks, &empty, key.emphasis, key.layer, &self.device)?;
                contexts.push(output.hidden.flatten(0, 1)?.unsqueeze(0)?); // (1, chunks * 77, d)
                pooled.push(output.pooled.narrow(0, 0, 1)?);
            }
            if !kept {
                part.leave();
            }
        }
        let join = |(contexts, pooled): (Vec<Tensor>, Tensor)| -> Result<Encoded> {
            Ok(Encoded { context: Tensor::cat(&contexts, D::Minus1)?, pooled })
        };
        contexts.into_iter().zip(pooled).map(join).collect()
    }
}

impl Encoder {
    /// A text in chunks, with its brackets read as its emphasis says.
    fn chunks(&self, key: &Key) -> Result<Vec<Chunk>> {
        let spans = match key.emphasis {
            Emphasis::None => vec![Span::plain(&*key.text)],
            _ => prompt::spans(&key.text),
        };
        Ok(prompt::chunks(&self.tokenizer, &spans, key.comma_backtrack, &NoEmbeddings)?)
    }
}
