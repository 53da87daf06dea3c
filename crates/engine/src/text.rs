//! Prompts to what steers the denoiser.

use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use kiln_clip::{HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer, Words};
use kiln_unet::{AddedConditions, Conditioning};
use kiln_weights::{Lora, Placement};

use crate::error::Result;
use crate::model_folder::{Family, ModelFolder};
use crate::part::{Copies, Keep, Part};
use crate::resolved::Job;
use crate::words::Embeddings;

/// A model's text encoders with their tokenizers.
pub(crate) struct TextEncoders {
    family: Family,
    zeros_for_no_negative: bool,
    device: Device,
    encoders: Vec<Encoder>,
    embeddings: Embeddings,
    /// The conditions of the last job: those of its next batch, and often of the next job.
    last: Option<(Asked, Conditioning)>,
}

struct Encoder {
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    part: Part,
}

/// What conditions depend on.
#[derive(PartialEq)]
struct Asked {
    prompt: String,
    negative_prompt: Option<String>,
    guided: bool,
    /// Width and height in pixels, and images.
    size: (usize, usize, usize),
}

impl Asked {
    fn of(job: &Job, n: usize) -> Self {
        Self {
            prompt: job.prompt.clone(),
            negative_prompt: job.negative_prompt.clone(),
            guided: job.is_guided(),
            size: (job.width, job.height, n),
        }
    }
}

/// One prompt, encoded.
struct Encoded {
    /// `(1, chunks * 77, d)`.
    context: Tensor,
    /// `(1, d)`: the last encoder's pooled output of the first chunk.
    pooled: Tensor,
}

impl TextEncoders {
    /// Opens a model's text encoders. No weights are read.
    pub(crate) fn open(
        model: &ModelFolder,
        placement: &Placement,
        copies: &Copies,
        embeddings: Embeddings,
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
            device: placement.device.clone(),
            encoders: configs.map(open_one).collect::<Result<_>>()?,
            embeddings,
            last: None,
        })
    }

    /// The weights, encoder by encoder.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.encoders.iter().map(|encoder| &encoder.part)
    }

    /// Takes the words of these LoRAs in the place of those before, and forgets the last job's conditions where they may
    /// be others now: where the text encoders' `weights` changed, or words.
    pub(crate) fn set_loras<'a>(&mut self, loras: impl Iterator<Item = &'a Arc<Lora>>, weights: bool) {
        if self.embeddings.set_loras(loras) || weights {
            self.last = None;
        }
    }

    /// Chunks of tokens of the longest text of `job`.
    pub(crate) fn chunks(&self, job: &Job) -> Result<usize> {
        let prompt = job.text()?;
        let texts: Vec<&str> = std::iter::once(prompt.as_str()).chain(job.negative_prompt.as_deref()).collect();
        let mut longest = 1;
        for (encoder, words) in self.encoders.iter().zip(self.words(&texts)?) {
            for text in &texts {
                longest = longest.max(encoder.tokenizer.chunks_with(text, &words)?.len());
            }
        }
        Ok(longest)
    }

    /// The words of `texts` that have vectors of their own, for each encoder.
    fn words(&self, texts: &[&str]) -> Result<Vec<Words>> {
        let encoders: Vec<&TextEncoder> = self.encoders.iter().map(|encoder| &encoder.encoder).collect();
        self.embeddings.named_in(texts, &encoders)
    }

    /// Whether the conditions for `n` images of `job` are there, so that no weights are needed.
    pub(crate) fn is_known(&self, job: &Job, n: usize) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| *last == Asked::of(job, n))
    }

    /// The conditions for `n` images of `job`: the unconditional ones first where the job is guided, so `(2 n, ..)` or
    /// `(n, ..)`. An encoder's weights are read when its turn comes; unless they are to be `kept`, they go after it.
    pub(crate) fn conditioning(&mut self, job: &Job, n: usize, keep: &Keep, kept: bool) -> Result<Conditioning> {
        let asked = Asked::of(job, n);
        if let Some((_, conditioning)) = self.last.as_ref().filter(|(last, _)| *last == asked) {
            return Ok(conditioning.clone());
        }
        let conditioning = self.make_conditioning(job, n, keep, kept)?;
        self.last = Some((asked, conditioning.clone()));
        Ok(conditioning)
    }

    fn make_conditioning(&self, job: &Job, n: usize, keep: &Keep, kept: bool) -> Result<Conditioning> {
        let negative = job.is_guided().then_some(job.negative_prompt.as_deref());
        let zeros = negative == Some(None) && self.zeros_for_no_negative;
        let prompt = job.text()?;
        let mut texts = vec![prompt.as_str()];
        texts.extend(negative.filter(|_| !zeros).map(|text| text.unwrap_or("")));
        let encoded = self.encode(&texts, keep, kept)?;

        let mut parts = vec![&encoded[0]];
        let nothing = Encoded { context: encoded[0].context.zeros_like()?, pooled: encoded[0].pooled.zeros_like()? };
        match encoded.get(1) {
            Some(negative) => parts.insert(0, negative),
            None if zeros => parts.insert(0, &nothing),
            None => {}
        }
        let repeated = |part: fn(&Encoded) -> &Tensor| -> Result<Tensor> {
            let copies: Vec<&Tensor> = parts.iter().flat_map(|&encoded| vec![part(encoded); n]).collect();
            Ok(Tensor::cat(&copies, 0)?)
        };
        let added = match self.family {
            Family::Sd => None,
            Family::Sdxl => {
                let (height, width) = (job.height as f32, job.width as f32);
                let time_ids = [height, width, 0.0, 0.0, height, width]; // original size, crop, target size
                let time_ids = Tensor::new(&[time_ids], &self.device)?.repeat((parts.len() * n, 1))?; // (b, 6)
                Some(AddedConditions { text_embeds: repeated(|encoded| &encoded.pooled)?, time_ids })
            }
        };
        Ok(Conditioning { context: repeated(|encoded| &encoded.context)?, added })
    }

    /// Encodes texts in chunks of 75 tokens; all get as many chunks as the longest.
    fn encode(&self, texts: &[&str], keep: &Keep, kept: bool) -> Result<Vec<Encoded>> {
        let layer = match self.family {
            Family::Sd => HiddenLayer::LAST,
            Family::Sdxl => HiddenLayer::PENULTIMATE,
        };
        let words = self.words(texts)?;
        let mut contexts = vec![Vec::new(); texts.len()];
        let mut pooled = Vec::new();
        for (Encoder { tokenizer, encoder, part }, words) in self.encoders.iter().zip(&words) {
            let chunks = texts.iter().map(|text| Ok(tokenizer.chunks_with(text, words)?));
            let mut chunks = chunks.collect::<Result<Vec<_>>>()?;
            let longest = chunks.iter().map(Vec::len).max().unwrap_or(1);
            pooled.clear();
            part.enter(keep)?;
            for (chunks, contexts) in chunks.iter_mut().zip(&mut contexts) {
                chunks.resize(longest, tokenizer.empty_chunk());
                let output = encoder.encode_with(chunks, layer, &self.device, words)?;
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
