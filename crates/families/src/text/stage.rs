//! CLIP's text encoders and T5 together: the text stage of Stable Diffusion 3 and of FLUX.1.

use std::sync::Arc;

use candle_core::DType;
use kiln_clip::{ClipEncoder, ClipText, HiddenLayer};
use kiln_network::TextWidths;
use kiln_network::text::{
    CONTEXT, Error, Fill, POOLED, PromptText, Result, Runs, TextNetwork, TextStage, TextTensors, Tokens, Words,
};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_prompt::{ChunkCut, TextOptions};
use kiln_t5::T5Ids;

use super::conditions::Conditions;
use super::t5::{PORTION, T5Part, T5Tokens};

/// The tokens of one of CLIP's chunks, where no CLIP encoder says how many.
const CLIP_CHUNK: usize = 77;

/// Text encoders of CLIP's kind and one of T5's, with the tensors of a family.
///
/// Stable Diffusion 3 takes the rows of both encoders of CLIP next to each other, in chunks of 77, and T5's rows behind them; its
/// pooled vector has those of both. FLUX.1 takes T5's rows, and the pooled vector of CLIP. All T5 rows are used, also those of
/// padding.
pub struct ClipT5Text {
    clip: Option<ClipText>,
    t5: Option<T5Part>,
    conditions: Conditions,
    /// The number of T5's tokens, unless a request has one.
    length: usize,
}

/// The tokens of a text for both kinds of encoders.
struct Parts {
    clip: Option<Arc<Tokens>>,
    t5: Option<T5Tokens>,
    /// The number of T5's tokens.
    length: usize,
}

impl ClipT5Text {
    /// The stage of Stable Diffusion 3 (diffusers, `StableDiffusion3Pipeline.encode_prompt`): CLIP's encoders `[L, G]` and T5, each
    /// of which may be absent and leaves zeros. `widths` are the denoiser's; `max_length` is the number of T5's tokens by default.
    pub fn sd3([l, g]: [Option<ClipEncoder>; 2], t5: Option<T5Part>, widths: TextWidths, max_length: usize) -> Self {
        let is_first_absent = l.is_none();
        let clip: Vec<ClipEncoder> = l.into_iter().chain(g).collect();
        let clip = (!clip.is_empty()).then(|| ClipText::new(clip, HiddenLayer::PENULTIMATE).with_all_pooled());
        let own = clip.as_ref().map_or(0, ClipText::pooled_width);
        let pooled = widths.pooled.unwrap_or(own);
        let conditions = Conditions {
            chunk: clip.as_ref().map_or(CLIP_CHUNK, |clip| clip.least()),
            before: if is_first_absent && own > 0 { pooled.saturating_sub(own) } else { 0 },
            context: context_width(t5.as_ref(), widths),
            pooled,
        };
        Self { clip, t5, conditions, length: max_length }
    }

    /// The stage of FLUX.1 (diffusers, `FluxPipeline.encode_prompt`): CLIP-L for the pooled vector, of the first 77 tokens, and T5
    /// for the rows. See [`Self::sd3`].
    pub fn flux(clip: Option<ClipEncoder>, t5: Option<T5Part>, widths: TextWidths, max_length: usize) -> Self {
        let clip = clip.map(|clip| ClipText::new(vec![clip], HiddenLayer::LAST));
        let own = clip.as_ref().map_or(0, ClipText::pooled_width);
        let context = context_width(t5.as_ref(), widths);
        let conditions = Conditions { chunk: 0, before: 0, context, pooled: widths.pooled.unwrap_or(own) };
        Self { clip, t5, conditions, length: max_length }
    }

    /// Whether the denoiser takes CLIP's rows.
    fn has_clip_rows(&self) -> bool {
        self.conditions.chunk > 0
    }

    /// The options of CLIP's encoders. Without their rows, one chunk of a text is enough.
    fn clip_options(&self, options: TextOptions) -> TextOptions {
        let chunk_cut = if self.has_clip_rows() { options.chunk_cut } else { ChunkCut::Truncate };
        TextOptions { chunk_cut, ..options }
    }

    fn clip_text(&self, text: &PromptText) -> PromptText {
        PromptText::plain(text.text.clone(), self.clip_options(text.options))
    }

    /// The tokens of a text for both kinds of encoders as the stage's tokens.
    fn joined(&self, parts: Parts) -> Tokens {
        let clip = parts.clip.as_deref();
        let rows = if self.has_clip_rows() { clip.map_or(self.conditions.chunk, Tokens::length) } else { 0 };
        // A request has room for what CLIP's chunks hold; what T5 cannot take is cut off.
        let of_clip = clip.filter(|_| self.has_clip_rows() || self.t5.is_none());
        let mut used = of_clip.map_or(0, Tokens::used);
        let mut room = of_clip.map_or(0, Tokens::room);
        let mut heaviest = clip.map_or(1.0, Tokens::heaviest);
        if let Some(t5) = &parts.t5 {
            (used, room) = (t5.used, room.max(parts.length.saturating_sub(1)));
            heaviest = if t5.heaviest().abs() > heaviest.abs() { t5.heaviest() } else { heaviest };
        }
        let cut = parts.t5.as_ref().and_then(|t5| t5.cut.clone());
        Tokens::new(rows + parts.length, parts).with_room(used, room).with_heaviest(heaviest).with_cut(cut)
    }

    /// CLIP's chunks and T5's tokens in `length` context tokens. A number of T5's tokens that is not the default is taken for that of
    /// a text with one chunk.
    fn parts_of(&self, length: usize) -> [usize; 2] {
        let chunk = self.conditions.chunk;
        match length.checked_sub(self.length) {
            _ if chunk == 0 => [1, length],
            Some(rows) if rows > 0 && rows.is_multiple_of(chunk) => [rows / chunk, self.length],
            _ => [1, length.saturating_sub(chunk)],
        }
    }
}

/// Channels of a row.
fn context_width(t5: Option<&T5Part>, widths: TextWidths) -> usize {
    widths.context.or(t5.map(|t5| t5.encoder.config().d_model)).unwrap_or(0)
}

fn foreign() -> Error {
    kiln_t5::Error::Tokenize("its tokens are those of another text stage".into()).into()
}

impl TextStage for ClipT5Text {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        let mut all = self.clip.as_ref().map(ClipText::networks).unwrap_or_default();
        all.extend(self.t5.iter().map(|t5| TextNetwork { segments: t5.encoder.segments(), network: t5.network }));
        all
    }

    fn ignores(&self) -> &'static [&'static str] {
        if self.has_clip_rows() { &[] } else { &["clip_skip", "chunk_cut", "comma_backtrack"] }
    }

    fn effective(&self, options: TextOptions) -> TextOptions {
        let max_length = Some(options.max_length.unwrap_or(self.length).max(1));
        match &self.clip {
            Some(clip) if self.has_clip_rows() => TextOptions { max_length, ..clip.effective(options) },
            _ => TextOptions { emphasis: options.emphasis, max_length, ..TextOptions::default() },
        }
    }

    fn tokenize(&self, text: &PromptText, words: &dyn Words) -> Result<Tokens> {
        let length = self.effective(text.options).max_length.unwrap_or(self.length);
        let clip = self.clip.as_ref().map(|clip| clip.tokenize(&self.clip_text(text), words)).transpose()?;
        let t5 = self.t5.as_ref().map(|t5| t5.tokenize(&text.text, text.options.emphasis, length)).transpose()?;
        Ok(self.joined(Parts { clip: clip.map(Arc::new), t5, length }))
    }

    fn sample(&self, number: usize) -> Tokens {
        let sample = |t5: &T5Part| T5Tokens::sample(number, self.length, t5.encoder.config().vocab_size);
        let clip = self.clip.as_ref().map(|clip| Arc::new(clip.sample(number)));
        self.joined(Parts { clip, t5: self.t5.as_ref().map(sample), length: self.length })
    }

    fn least(&self) -> usize {
        self.conditions.chunk + self.length
    }

    fn fit(&self, rows: &[usize], padded: bool) -> Result<usize> {
        let longest = rows.iter().copied().max().unwrap_or(self.least());
        // Image and text share one attention, in which repeated rows would count twice.
        if !padded && rows.iter().any(|&row| row != longest) {
            let expected = "on: the prompts have unequal numbers of chunks of 75 tokens, which this model takes with padding alone";
            return Err(Error::Option { name: "pad_conds", found: "off".into(), expected: expected.into() });
        }
        Ok(longest)
    }

    fn needs_empty(&self, length: usize, fill: &Fill) -> bool {
        length < fill.total
    }

    fn fill(&self, text: &TextTensors, fill: &Fill, empty: Option<&TextTensors>) -> Result<TextTensors> {
        match text.get(CONTEXT).map(|own| own.dim(1)).transpose()? {
            Some(length) if self.needs_empty(length, fill) => self.conditions.fill(text, fill, empty),
            _ => Ok(text.clone()),
        }
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let parts =
            texts.iter().map(|(_, tokens)| tokens.own::<Parts>().ok_or_else(foreign)).collect::<Result<Vec<_>>>()?;
        let mut clip: Vec<Option<TextTensors>> = vec![None; texts.len()];
        if let Some(own) = &self.clip {
            let tokens = |part: &&Parts| part.clip.clone().ok_or_else(foreign);
            let texts = texts.iter().zip(&parts).map(|((text, _), part)| Ok((self.clip_text(text), tokens(part)?)));
            clip = own.encode(&texts.collect::<Result<Vec<_>>>()?, on)?.into_iter().map(Some).collect();
        }
        let mut t5 = vec![None; texts.len()];
        if let Some(own) = &self.t5 {
            let tokens = |part: &&'_ Parts| part.t5.clone().ok_or_else(foreign);
            let tokens = parts.iter().map(tokens).collect::<Result<Vec<_>>>()?;
            let texts: Vec<_> =
                tokens.iter().zip(texts).map(|(tokens, (text, _))| (tokens, text.options.emphasis)).collect();
            let network = self.clip.as_ref().map_or(0, |clip| clip.networks().len());
            t5 = own.encode(&texts, network, on)?.into_iter().map(Some).collect();
        }
        let chunk = self.conditions.chunk.max(1);
        let all = parts.into_iter().zip(texts).zip(clip.into_iter().zip(t5));
        all.map(|((part, (_, tokens)), (clip, t5))| {
            let chunks = tokens.length().saturating_sub(part.length) / chunk;
            self.conditions.join(clip.as_ref(), t5, [chunks, part.length])
        })
        .collect()
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        vec![(CONTEXT, vec![1, length, self.conditions.context]), (POOLED, vec![1, self.conditions.pooled])]
    }

    /// The results of all encoders are in memory when they are joined.
    fn dry_run(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        let [chunks, tokens] = self.parts_of(length);
        let mut parts = Vec::new();
        if let Some(clip) = &self.clip {
            parts.extend(clip.dry_run(device, dtype, chunks * clip.least(), texts)?);
        }
        if let Some(t5) = &self.t5 {
            for first in (0..texts).step_by(PORTION) {
                let ids = vec![T5Ids::from(vec![0; tokens.max(1)]); PORTION.min(texts - first)];
                parts.extend(t5.encoder.forward::<MetaTensor>(&ids, device).map_err(Error::from)?);
            }
        }
        let shapes = (0..texts).flat_map(|_| self.shapes(length));
        Ok(shapes.map(|(_, shape)| device.tensor(&shape, dtype)).collect())
    }
}
