//! Prompts to what steers the denoiser.

use candle_core::{D, Tensor};
use kiln_clip::{HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};
use kiln_unet::{AddedConditions, Conditioning};
use kiln_weights::{Placement, Segment, load};

use crate::error::Result;
use crate::model_files::ModelFiles;
use crate::model_folder::{Family, ModelFolder};
use crate::resolved::Job;

/// A model's text encoders with their tokenizers.
///
/// On the processor their weights go once a prompt is encoded: a denoiser that runs for minutes gets the memory, and
/// reading them again for the next prompt takes a fraction of a second. On a card, where a picture takes about as long
/// as that, they stay.
pub(crate) struct TextEncoders {
    family: Family,
    zeros_for_no_negative: bool,
    placement: Placement,
    encoders: Vec<Encoder>,
    /// The conditions of the last job: those of its next batch, and often of the next job.
    last: Option<(Asked, Conditioning)>,
}

struct Encoder {
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    /// Where its weights are, and which of the model's encoders it is.
    files: ModelFiles,
    index: usize,
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

impl Encoder {
    /// Reads the weights where they are not there.
    fn load(&self, placement: &Placement) -> Result<()> {
        if !self.encoder.segments().iter().all(Segment::is_loaded) {
            load(self.encoder.segments(), &self.files.text_encoder(self.index)?, placement)?;
        }
        Ok(())
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
    pub(crate) fn load(model: &ModelFolder, placement: &Placement) -> Result<Self> {
        let load_one = |(index, config): (usize, &TextEncoderConfig)| -> Result<_> {
            let files = model.files().clone();
            let (tokenizer, encoder) = (files.tokenizer(index)?, TextEncoder::new(config.clone())?);
            let encoder = Encoder { tokenizer, encoder, files, index };
            encoder.load(placement)?;
            Ok(encoder)
        };
        let configs = model.text_encoder_configs().iter().enumerate();
        Ok(Self {
            family: model.family(),
            zeros_for_no_negative: model.zeros_for_no_negative(),
            placement: placement.clone(),
            encoders: configs.map(load_one).collect::<Result<_>>()?,
            last: None,
        })
    }

    /// The conditions for `n` images of `job`: the unconditional ones first where the job is guided, so `(2 n, ..)` or
    /// `(n, ..)`.
    pub(crate) fn conditioning(&mut self, job: &Job, n: usize) -> Result<Conditioning> {
        let asked = Asked {
            prompt: job.prompt.clone(),
            negative_prompt: job.negative_prompt.clone(),
            guided: job.is_guided(),
            size: (job.width, job.height, n),
        };
        if let Some((_, conditioning)) = self.last.as_ref().filter(|(last, _)| *last == asked) {
            return Ok(conditioning.clone());
        }
        self.encoders.iter().try_for_each(|encoder| encoder.load(&self.placement))?;
        let conditioning = self.make_conditioning(job, n)?;
        if self.placement.device.is_cpu() {
            self.encoders.iter().for_each(|encoder| encoder.encoder.segments().unload());
        }
        self.last = Some((asked, conditioning.clone()));
        Ok(conditioning)
    }

    fn make_conditioning(&self, job: &Job, n: usize) -> Result<Conditioning> {
        let negative = job.is_guided().then_some(job.negative_prompt.as_deref());
        let zeros = negative == Some(None) && self.zeros_for_no_negative;
        let mut texts = vec![job.prompt.as_str()];
        texts.extend(negative.filter(|_| !zeros).map(|text| text.unwrap_or("")));
        let encoded = self.encode(&texts)?;

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
                let time_ids = Tensor::new(&[time_ids], &self.placement.device)?.repeat((parts.len() * n, 1))?; // (b, 6)
                Some(AddedConditions { text_embeds: repeated(|encoded| &encoded.pooled)?, time_ids })
            }
        };
        Ok(Conditioning { context: repeated(|encoded| &encoded.context)?, added })
    }

    /// Encodes texts in chunks of 75 tokens; all get as many chunks as the longest.
    fn encode(&self, texts: &[&str]) -> Result<Vec<Encoded>> {
        let layer = match self.family {
            Family::Sd => HiddenLayer::LAST,
            Family::Sdxl => HiddenLayer::PENULTIMATE,
        };
        let mut contexts = vec![Vec::new(); texts.len()];
        let mut pooled = Vec::new();
        for Encoder { tokenizer, encoder, .. } in &self.encoders {
            let mut chunks = texts.iter().map(|text| Ok(tokenizer.chunks(text)?)).collect::<Result<Vec<_>>>()?;
            let longest = chunks.iter().map(Vec::len).max().unwrap_or(1);
            pooled.clear();
            for (chunks, contexts) in chunks.iter_mut().zip(&mut contexts) {
                chunks.resize(longest, tokenizer.empty_chunk());
                let output = encoder.encode(chunks, layer, &self.placement.device)?;
                contexts.push(output.hidden.flatten(0, 1)?.unsqueeze(0)?); // (1, chunks * 77, d)
                pooled.push(output.pooled.narrow(0, 0, 1)?);
            }
        }
        let join = |(contexts, pooled): (Vec<Tensor>, Tensor)| -> Result<Encoded> {
            Ok(Encoded { context: Tensor::cat(&contexts, D::Minus1)?, pooled })
        };
        contexts.into_iter().zip(pooled).map(join).collect()
    }
}
