//! Prompts to what steers the denoiser.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use kiln_clip::prompt::{self, Chunk, ChunkCut, Span};
use kiln_clip::{Emphasis, HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer, Words};
use kiln_unet::guidance_input;
use kiln_weights::{Lora, Placement};

use crate::error::Result;
use crate::model_folder::{Family, ModelFolder};
use crate::part::{Copies, Keep, Part};
use crate::pipeline::batch::Together;
use crate::pipeline::conditioning::{Conditions, Row, Steering};
use crate::pipeline::lengths::{Fill, Lengths};
use crate::pipeline::text_cache::{CacheCounts, Encoded, Key, PromptCache};
use crate::plan::Work;
use crate::resolved::Job;
use crate::words::Embeddings;

/// A model's text encoders with their tokenizers.
pub(crate) struct TextEncoders {
    family: Family,
    zeros_for_no_negative: bool,
    /// Where conditions go; the encoders' own device may be another one.
    device: Device,
    encoders: Vec<Encoder>,
    embeddings: Embeddings,
    cache: PromptCache,
    /// Texts that will be asked for.
    ahead: VecDeque<Key>,
    /// Whether these are encoded by [`Self::encode_next`] alone, not with the next text that is needed.
    beside: bool,
}

/// What texts make of a picture: pictures that share a batch have one, or one of them would change the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    guided: bool,
    /// Whether parts are combined by weights.
    composed: bool,
    /// Prompts that steer the picture.
    parts: usize,
    /// Chunks of tokens of the longest text.
    chunks: usize,
    /// Chunks of every text in the batch, after shorter ones were filled up or repeated.
    context: usize,
}

impl Shape {
    /// What a batch of `n` such pictures of `job` takes, of which those at hand have `texts` different texts. More than
    /// one for each row are those of schedules: they are rounded up, so that batches that differ little have one plan.
    pub(crate) fn work(self, job: &Job, n: usize, texts: usize) -> Work {
        let Self { guided, parts, chunks, context, .. } = self;
        let usual = n * if guided { 1 + parts } else { 1 };
        let texts = if texts <= usual { usual } else { texts.next_power_of_two() };
        Work { batch_size: n, guided, parts, chunks, context, texts, ..Work::of(job) }
    }
}

struct Encoder {
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    part: Part,
}

/// Asked before a text is encoded, with its number among those of the encoder and with how many there are. An error stops.
pub(crate) type Proceed<'a> = dyn FnMut(usize, usize) -> Result<()> + 'a;

/// Texts as the encoders take them.
struct Read {
    /// The words with vectors of their own, for each encoder.
    words: Vec<Words>,
    /// For each encoder the chunks of each text.
    chunks: Vec<Vec<Vec<Chunk>>>,
}

impl TextEncoders {
    /// Opens a model's text encoders, which remember `cached_texts` texts; what they give goes to the device of the second
    /// place. No weights are read.
    pub(crate) fn open(
        model: &ModelFolder,
        [placement, conditions]: [&Placement; 2],
        copies: &Copies,
        embeddings: Embeddings,
        cached_texts: usize,
    ) -> Result<Self> {
        let open_one = |(i, config): (usize, &TextEncoderConfig)| -> Result<_> {
            let (tokenizer, encoder) = (model.files().tokenizer(i)?, TextEncoder::new(config.clone())?);
            let part = Part::new(encoder.segments(), model.files().text_encoder(i)?, placement, copies);
            part.check()?;
            Ok(Encoder { tokenizer, encoder, part })
        };
        let configs = model.text_encoder_configs().iter().enumerate();
        Ok(Self {
            family: model.family(),
            zeros_for_no_negative: model.zeros_for_no_negative(),
            device: conditions.device.clone(),
            encoders: configs.map(open_one).collect::<Result<_>>()?,
            embeddings,
            cache: PromptCache::new(cached_texts),
            ahead: VecDeque::new(),
            beside: false,
        })
    }

    /// The weights, encoder by encoder.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.encoders.iter().map(|encoder| &encoder.part)
    }

    /// Takes the words of these LoRAs in the place of those before, and forgets encoded texts where they may be others
    /// now: where the text encoders' `weights` changed, or words.
    pub(crate) fn set_loras<'a>(&mut self, loras: impl Iterator<Item = &'a Arc<Lora>>, weights: bool) {
        if self.embeddings.set_loras(loras) || weights {
            self.cache.clear();
        }
    }

    /// What steers images that are made together, before any text is encoded.
    pub(crate) fn steering(&self, together: &Together<'_>) -> Steering {
        Steering::of(together, self.zeros_for_no_negative)
    }

    /// What a batch of `job` takes: the most of its batches, the first ones where each picture has choices of its own.
    pub(crate) fn work(&self, job: &Job) -> Result<Work> {
        const LOOKED_AT: usize = 8;
        let mut work = Work::of(job);
        let looked_at = if job.has_choices() { LOOKED_AT.min(job.batch_count) } else { 1 };
        for batch in 0..looked_at {
            let together = Together::of_job(job, batch * job.batch_size);
            let Shape { guided, parts, chunks, context, .. } = self.shape(&together)?;
            work.guided |= guided;
            work.parts = work.parts.max(parts);
            work.chunks = work.chunks.max(chunks);
            work.context = work.context.max(context);
            work.texts = work.texts.max(self.steering(&together).texts.len());
        }
        Ok(work)
    }

    /// What the texts of pictures that are made together make of them.
    pub(crate) fn shape(&self, together: &Together<'_>) -> Result<Shape> {
        let (job, steering) = (together.job(), self.steering(together));
        let keys: Vec<Key> = steering.texts.iter().map(|text| self.key(job, text)).collect();
        let read = self.read(&keys)?;
        let chunks_of = |text: usize| read.chunks.iter().filter_map(|texts| texts.get(text)).map(Vec::len).max();
        let chunks: Vec<usize> = (0..keys.len()).map(|text| chunks_of(text).unwrap_or(1)).collect();
        let lengths = Lengths::of(&steering, together.len(), &chunks, job.pad_conds)?;
        let composed = !steering.weights.is_empty();
        let (chunks, context) = (lengths.longest(), lengths.total());
        Ok(Shape { guided: steering.guided, composed, parts: steering.parts(together.len()), chunks, context })
    }

    /// Has the texts of `jobs` encoded when texts are encoded next, as many as half of the cache has room for; or, where
    /// somebody calls it `beside`, by [`Self::encode_next`] alone.
    pub(crate) fn foresee<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>, beside: bool) {
        self.beside = beside;
        let room = self.cache.capacity() / 2;
        self.ahead.clear();
        for job in jobs {
            for text in self.steering(&Together::of_jobs([job])).texts {
                let key = self.key(job, &text);
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

    /// Encodes the next text that is foreseen and not known, with weights that stay; false where there is none.
    ///
    /// # Errors
    /// Those of the encoders; the text is not tried again here.
    pub(crate) fn encode_next(&mut self) -> Result<bool> {
        while let Some(key) = self.ahead.pop_front() {
            if self.cache.peek(&key).is_none() {
                let encoded = self.run(std::slice::from_ref(&key), &Keep::Whole, true, &mut |_, _| Ok(()))?;
                encoded.into_iter().for_each(|encoded| self.cache.put(key.clone(), encoded));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether all texts of `n` images are encoded already, and the empty one if it is needed behind them, so that no
    /// weights are.
    pub(crate) fn knows(&self, job: &Job, steering: &Steering, n: usize) -> bool {
        let tokens = self.tokens();
        let length =
            |text: &str| self.cache.peek(&self.key(job, text)).map(|encoded| encoded.context.dims()[1] / tokens);
        let chunks: Option<Vec<usize>> = steering.texts.iter().map(|text| length(text)).collect();
        let is_enough = |chunks: Vec<usize>| {
            let lengths = Lengths::of(steering, n, &chunks, job.pad_conds);
            lengths.is_ok_and(|lengths| !needs_empty(steering, &lengths, &chunks) || length("").is_some())
        };
        chunks.is_some_and(is_enough)
    }

    /// The tokens of a chunk.
    fn tokens(&self) -> usize {
        self.encoders.first().map_or(1, |encoder| encoder.tokenizer.max_length()).max(1)
    }

    /// How often a text was encoded, and how often it was there.
    pub(crate) fn counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Encodes the texts of `n` images that are not known, and makes them of one length as [`Lengths`] says. An encoder's
    /// weights are read when its turn comes; unless they are to be `kept`, they go after it. `proceed` may stop between
    /// texts.
    pub(crate) fn conditions(
        &mut self,
        job: &Job,
        mut steering: Steering,
        n: usize,
        keep: &Keep,
        kept: bool,
        proceed: &mut Proceed<'_>,
    ) -> Result<Conditions> {
        let mut encoded = self.encode(job, &steering.texts, keep, kept, proceed)?;
        let tokens = self.tokens();
        let chunks = encoded.iter().map(|encoded| Ok(encoded.context.dim(1)? / tokens)).collect::<Result<Vec<_>>>()?;
        let lengths = Lengths::of(&steering, n, &chunks, job.pad_conds)?;
        let mut empty = None;
        if needs_empty(&steering, &lengths, &chunks) {
            let number = steering.number("");
            if number == encoded.len() {
                encoded.extend(self.encode(job, &[String::new()], keep, kept, proceed)?);
            }
            empty = encoded.get(number).map(|encoded| encoded.context.clone());
        }
        let encoded = filled(&mut steering, &encoded, &lengths, empty.as_ref(), tokens)?;
        let time_ids = match self.family {
            Family::Sd => None,
            Family::Sdxl => {
                let (height, width) = (job.height as f32, job.width as f32);
                let time_ids = [height, width, 0.0, 0.0, height, width]; // original size, crop, target size
                Some(Tensor::new(&[time_ids], &self.device)?)
            }
        };
        let there = |encoded: Encoded| encoded.on(&self.device);
        let encoded = encoded.into_iter().map(there).collect::<Result<_>>()?;
        let guidance = job.guidance_inside.then(|| Tensor::new(&[guidance_input(job.cfg_scale)], &self.device));
        Conditions::new(steering, encoded, time_ids, guidance.transpose()?)
    }

    fn key(&self, job: &Job, text: &str) -> Key {
        let layer = match (self.family, job.clip_skip) {
            (Family::Sd, None) => HiddenLayer::LAST,
            (Family::Sdxl, None) => HiddenLayer::PENULTIMATE,
            (family, Some(from_end)) => HiddenLayer { from_end, final_layer_norm: family == Family::Sd },
        };
        let Job { emphasis, chunk_cut, comma_backtrack, .. } = *job;
        Key { text: text.into(), emphasis, layer, chunk_cut, comma_backtrack }
    }

    /// The texts, from the cache or from the encoders.
    fn encode(
        &mut self,
        job: &Job,
        texts: &[String],
        keep: &Keep,
        kept: bool,
        proceed: &mut Proceed<'_>,
    ) -> Result<Vec<Encoded>> {
        let keys: Vec<Key> = texts.iter().map(|text| self.key(job, text)).collect();
        let mut known: Vec<Option<Encoded>> = keys.iter().map(|key| self.cache.get(key)).collect();
        let is_new = |(_, known): &(&Key, &Option<Encoded>)| known.is_none();
        let mut new: Vec<Key> = keys.iter().zip(&known).filter(is_new).map(|(key, _)| key.clone()).collect();
        let asked = new.len();
        if asked > 0 && !self.beside {
            let ahead = std::mem::take(&mut self.ahead).into_iter();
            new.extend(ahead.filter(|key| self.cache.peek(key).is_none() && !keys.contains(key)));
        }
        let mut fresh = self.run(&new, keep, kept, proceed)?.into_iter();
        // More than there is room for would push each other out before they are asked for again.
        let is_kept = keys.len() <= self.cache.capacity();
        for (key, known) in keys.iter().zip(&mut known) {
            if known.is_none() {
                *known = fresh.next();
                match known.as_ref().filter(|_| is_kept) {
                    Some(encoded) => self.cache.put(key.clone(), encoded.clone()),
                    None => self.cache.pass(),
                }
            }
        }
        new.drain(asked..).zip(fresh).for_each(|(key, encoded)| self.cache.put(key, encoded));
        Ok(known.into_iter().flatten().collect())
    }

    /// Cuts texts into chunks, with their brackets read as their emphasis says. Words with vectors of their own are looked
    /// for in what is between brackets: a name may have escaped ones in it.
    fn read(&self, keys: &[Key]) -> Result<Read> {
        let spans: Vec<Vec<Span>> = keys.iter().map(spans_of).collect();
        let texts: Vec<&str> = spans.iter().flatten().map(|span| span.text.as_str()).collect();
        let encoders: Vec<&TextEncoder> = self.encoders.iter().map(|encoder| &encoder.encoder).collect();
        let words = self.embeddings.named_in(&texts, &encoders)?;
        let of_encoder = |(Encoder { tokenizer, .. }, words): (&Encoder, &Words)| -> Result<Vec<Vec<Chunk>>> {
            let texts = keys.iter().zip(&spans);
            texts
                .map(|(key, spans)| Ok(prompt::chunks(tokenizer, spans, key.chunk_cut, key.comma_backtrack, words)?))
                .collect()
        };
        let chunks = self.encoders.iter().zip(&words).map(of_encoder).collect::<Result<Vec<_>>>()?;
        Ok(Read { words, chunks })
    }

    /// Runs the encoders, one after another. `proceed` is asked before each text.
    fn run(&self, keys: &[Key], keep: &Keep, kept: bool, proceed: &mut Proceed<'_>) -> Result<Vec<Encoded>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let Read { words, mut chunks } = self.read(keys)?;
        let mut contexts = vec![Vec::new(); keys.len()];
        let mut pooled = Vec::new();
        for i in 0..keys.len() {
            // Tokenizers may disagree about a text; its chunks must not.
            let longest = chunks.iter().map(|texts| texts[i].len()).max().unwrap_or(1);
            for (texts, Encoder { tokenizer, .. }) in chunks.iter_mut().zip(&self.encoders) {
                let empty = prompt::chunks(tokenizer, &[], ChunkCut::Comma, 0, &Words::default())?;
                let missing = longest - texts[i].len();
                texts[i].extend(empty.iter().cycle().take(missing).cloned());
            }
        }
        for ((texts, words), Encoder { tokenizer, encoder, part }) in chunks.iter().zip(&words).zip(&self.encoders) {
            pooled.clear();
            part.enter(keep)?;
            for (i, ((chunks, key), contexts)) in texts.iter().zip(keys).zip(&mut contexts).enumerate() {
                proceed(i, keys.len())?;
                let empty = tokenizer.empty_chunk();
                let device = &part.placement().device;
                let output = encoder.encode_weighted(chunks, &empty, key.emphasis, key.layer, device, words)?;
                contexts.push(output.hidden.flatten(0, 1)?.unsqueeze(0)?); // (1, chunks * 77, d)
                pooled.push(output.pooled.narrow(0, 0, 1)?);
            }
            if !kept {
                part.leave();
            }
        }
        let join = |(contexts, pooled): (Vec<Tensor>, Tensor)| -> Result<Encoded> {
            let encoded = Encoded { context: Tensor::cat(&contexts, D::Minus1)?, pooled };
            // Between two streams of a card values go through the host, which also waits for them.
            let same = encoded.context.device().same_device(&self.device);
            if same { Ok(encoded) } else { encoded.on(&Device::Cpu) }
        };
        contexts.into_iter().zip(pooled).map(join).collect()
    }
}

/// Whether a text of some row gets empty chunks behind it.
fn needs_empty(steering: &Steering, lengths: &Lengths, chunks: &[usize]) -> bool {
    let in_row = |(i, row): (usize, &Row)| match (row, lengths.fill(i)) {
        (Row::Texts { texts, .. }, Some(fill)) => {
            texts.iter().filter_map(|&text| chunks.get(text)).any(|&chunks| lengths.needs_empty(fill, chunks))
        }
        _ => false,
    };
    steering.rows.iter().enumerate().any(in_row)
}

/// The texts as long as their rows. A text that is filled up in two ways becomes two: the rows get the numbers of theirs.
fn filled(
    steering: &mut Steering,
    encoded: &[Encoded],
    lengths: &Lengths,
    empty: Option<&Tensor>,
    tokens: usize,
) -> Result<Vec<Encoded>> {
    let (mut all, mut numbers): (Vec<Encoded>, HashMap<(usize, Fill), usize>) = Default::default();
    for (i, row) in steering.rows.iter_mut().enumerate() {
        let (Row::Texts { texts, .. }, Some(fill)) = (row, lengths.fill(i)) else { continue };
        for text in texts {
            *text = match (numbers.get(&(*text, fill)), encoded.get(*text)) {
                (Some(&number), _) => number,
                (None, Some(Encoded { context, pooled })) => {
                    let context = lengths.filled(context, fill, empty, tokens)?;
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

/// A text's spans, of which there is one where its emphasis says that brackets are text.
fn spans_of(key: &Key) -> Vec<Span> {
    match key.emphasis {
        Emphasis::None => vec![Span::plain(&*key.text)],
        _ => prompt::spans(&key.text),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::request::Request;

    #[test]
    fn what_is_foreseen_is_encoded_text_by_text_beside() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let place = Placement::new(Device::Cpu, DType::F32);
        let open = || {
            let words = Embeddings::open(None).unwrap();
            TextEncoders::open(&model, [&place, &place], &Copies::default(), words, 8).unwrap()
        };
        let request = |prompt: &str| Request { prompt: prompt.into(), ..Request::default() };
        let jobs = ["a pear", "a fig"].map(|prompt| request(prompt).resolve(&model).unwrap());
        let mut text = open();
        text.foresee(jobs.iter(), true);
        let encoded: Vec<bool> = (0..4).map(|_| text.encode_next().unwrap()).collect();
        assert_eq!(encoded, [true, true, true, false], "two prompts, and the empty one once");
        let conditions = |text: &mut TextEncoders, job: &Job| {
            let together = Together::of_jobs([job]);
            let steering = text.steering(&together);
            let known = text.knows(job, &steering, 1);
            let mut conditions = text.conditions(job, steering, 1, &Keep::Whole, true, &mut |_, _| Ok(())).unwrap();
            let context = conditions.at(0, true).unwrap().context;
            (known, context.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        };
        for job in &jobs {
            let (known, values) = conditions(&mut text, job);
            assert!(known && (false, values) == conditions(&mut open(), job));
        }
    }

    #[test]
    fn a_run_can_be_stopped_between_texts() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sdxl")).unwrap();
        let place = Placement::new(Device::Cpu, DType::F32);
        let words = Embeddings::open(None).unwrap();
        let mut text = TextEncoders::open(&model, [&place, &place], &Copies::default(), words, 8).unwrap();
        let prompt: String = (1..40).map(|i| format!("[x{i}:{i}]")).collect();
        let job = Request { prompt, steps: Some(40), ..Request::default() }.resolve(&model).unwrap();
        let steering = || text.steering(&Together::of_job(&job, 0));
        let (all, steering) = (steering(), steering());
        assert!(steering.texts.len() >= 40 && text.work(&job).unwrap().texts == steering.texts.len());
        let mut asked = 0;
        let mut stop = |i: usize, of: usize| {
            assert!(i < of);
            asked += 1;
            if asked == 5 { Err(crate::Error::Interrupted) } else { Ok(()) }
        };
        let stopped = text.conditions(&job, steering, 1, &Keep::Whole, true, &mut stop);
        assert!(matches!(stopped.err(), Some(crate::Error::Interrupted)) && asked == 5);
        // More texts than the cache has room for are not kept beside those that the run holds.
        let texts = all.texts.clone();
        text.conditions(&job, all, 1, &Keep::Whole, true, &mut |_, _| Ok(())).unwrap();
        assert!(text.counts().encoded >= texts.len());
        assert!(
            texts
                .iter()
                .filter(|known| !known.is_empty())
                .all(|known| text.cache.peek(&text.key(&job, known)).is_none())
        );
    }
}
