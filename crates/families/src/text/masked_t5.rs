//! T5 as the only text encoder, with a mask: the text stage of Chroma.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_network::text::{
    CONTEXT, Error, Fill, LENGTH, PromptText, Result, Runs, TextNetwork, TextStage, TextTensors, Tokens, Words,
};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_prompt::TextOptions;
use kiln_t5::T5Ids;

use super::qwen::{MULTIPLE, with_zeros};
use super::t5::{PORTION, T5Part, T5Tokens};

/// The text stage of Chroma (diffusers, `ChromaPipeline._get_t5_prompt_embeds`): the rows of the text's tokens, and of one token of
/// padding that no other token of T5 attends. The number of these rows goes with them.
///
/// Rows behind them are masked in the denoiser. diffusers 0.42 adds 1 to the scores of the others instead.
pub struct MaskedT5Text {
    part: T5Part,
    /// The number of tokens, unless a request has one.
    length: usize,
}

impl MaskedT5Text {
    /// The stage with at most `max_length` tokens by default.
    pub fn new(part: T5Part, max_length: usize) -> Self {
        Self { part, length: max_length }
    }

    /// The tokens `own` as the stage's tokens.
    fn framed(own: T5Tokens, room: usize) -> Tokens {
        let rows = own.ids.len().next_multiple_of(MULTIPLE);
        let (used, heaviest, cut) = (own.used, own.heaviest(), own.cut.clone());
        Tokens::new(rows, own).with_room(used, room).with_heaviest(heaviest).with_cut(cut)
    }
}

impl TextStage for MaskedT5Text {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        vec![TextNetwork { segments: self.part.encoder.segments(), network: self.part.network }]
    }

    fn ignores(&self) -> &'static [&'static str] {
        &["clip_skip", "chunk_cut", "comma_backtrack"]
    }

    fn effective(&self, options: TextOptions) -> TextOptions {
        let max_length = Some(options.max_length.unwrap_or(self.length).max(1));
        TextOptions { emphasis: options.emphasis, max_length, ..TextOptions::default() }
    }

    fn tokenize(&self, text: &PromptText, _words: &dyn Words) -> Result<Tokens> {
        let most = text.options.max_length.unwrap_or(self.length).max(1);
        let own = self.part.tokenize(&text.text, text.options.emphasis, most)?.with_one_pad();
        Ok(Self::framed(own, most - 1))
    }

    fn sample(&self, number: usize) -> Tokens {
        let rows = self.least();
        Self::framed(T5Tokens::sample(number, rows, self.part.encoder.config().vocab_size), rows)
    }

    fn least(&self) -> usize {
        MULTIPLE
    }

    fn fit(&self, rows: &[usize], _padded: bool) -> Result<usize> {
        // Rows behind a text are masked, so that they change nothing.
        Ok(rows.iter().copied().max().unwrap_or(self.least()))
    }

    fn needs_empty(&self, _length: usize, _fill: &Fill) -> bool {
        false
    }

    fn fill(&self, text: &TextTensors, fill: &Fill, _empty: Option<&TextTensors>) -> Result<TextTensors> {
        match text.get(CONTEXT) {
            Some(context) => Ok(text.clone().with(CONTEXT, with_zeros(context, fill.total)?)),
            None => Ok(text.clone()),
        }
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let foreign = || Error::from(kiln_t5::Error::Tokenize("its tokens are those of another text stage".into()));
        let own = texts.iter().map(|(text, tokens)| {
            let tokens = tokens.own::<T5Tokens>().ok_or_else(foreign)?;
            Ok((tokens, text.options.emphasis))
        });
        let own = own.collect::<Result<Vec<_>>>()?;
        let states = self.part.encode(&own, 0, on)?;
        let tensors = states.into_iter().map(|states| {
            let length = states.dim(1)?;
            let number = Tensor::new(&[length as f32], &Device::Cpu)?.to_device(states.device())?;
            let context = with_zeros(&states, length.next_multiple_of(MULTIPLE))?;
            Ok(TextTensors::default().with(CONTEXT, context).with(LENGTH, number))
        });
        tensors.collect()
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        vec![(CONTEXT, vec![1, length, self.part.encoder.config().d_model]), (LENGTH, vec![1])]
    }

    fn dry_run(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        for first in (0..texts).step_by(PORTION) {
            let ids = vec![T5Ids::from(vec![0; length.max(1)]); PORTION.min(texts - first)];
            self.part.encoder.forward::<MetaTensor>(&ids, device).map_err(Error::from)?;
        }
        let tensor = |(name, shape): (&'static str, Vec<usize>)| {
            device.tensor(&shape, if name == LENGTH { DType::F32 } else { dtype })
        };
        Ok((0..texts).flat_map(|_| self.shapes(length)).map(tensor).collect())
    }
}
