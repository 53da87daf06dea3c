//! CLIP's text encoders as the text stage of a model: one encoder, or several next to each other.
//!
//! Each encoder sees the same text in chunks of 77 tokens. Their hidden states are joined along the channels; the last
//! encoder's pooled vector of the first chunk is the text's, or those of all encoders are.

mod fill;
mod run;
mod tokens;

use std::sync::Arc;

use candle_core::DType;
use kiln_network::text::{
    CONTEXT, EncoderConfig, Error, Fill, POOLED, PromptText, Result, Runs, TextNetwork, TextStage, TextTensors, Tokens,
    Words,
};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_prompt::TextOptions;
use kiln_weights::Network;

use crate::config::TextEncoderConfig;
use crate::encoder::{HiddenLayer, TextEncoder};
use crate::textual_inversion::TokenEmbeddings;
use crate::tokenizer::Tokenizer;
use fill::{common_multiple, filled};
use run::encode;
use tokens::{ClipTokens, sample, tokenize};

/// One text encoder of a model.
pub struct ClipEncoder {
    /// The network.
    pub encoder: TextEncoder,
    /// Its tokenizer; `None` for plans and measurements, which encode no text of a prompt.
    pub tokenizer: Option<Tokenizer>,
    /// Its name for LoRAs and embeddings.
    pub network: Option<Network>,
}

/// CLIP's text encoders of a model, in their order.
pub struct ClipText {
    encoders: Vec<ClipEncoder>,
    layer: HiddenLayer,
    pooled: Pooled,
}

/// The encoders whose pooled vectors are a text's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pooled {
    /// The last one: SDXL.
    Last,
    /// All, joined along the channels: Stable Diffusion 3.
    All,
}

impl ClipText {
    /// The options without effect.
    pub const IGNORES: &[&str] = &["max_length"];

    /// A stage with these encoders. `layer` is the model's own: [`TextOptions::clip_skip`] replaces its number, and whether the
    /// final normalization follows stays.
    pub fn new(encoders: Vec<ClipEncoder>, layer: HiddenLayer) -> Self {
        Self { encoders, layer, pooled: Pooled::Last }
    }

    /// This stage with the pooled vectors of all encoders next to each other, instead of the last one's.
    pub fn with_all_pooled(self) -> Self {
        Self { pooled: Pooled::All, ..self }
    }

    /// Channels of the hidden states of all encoders together.
    pub fn context_width(&self) -> usize {
        self.encoders.iter().map(|own| own.encoder.config().hidden_size).sum()
    }

    /// Channels of the pooled vector.
    pub fn pooled_width(&self) -> usize {
        let widths = self.encoders.iter().map(|own| own.encoder.config().pooled_size());
        match self.pooled {
            Pooled::Last => widths.last().unwrap_or(0),
            Pooled::All => widths.sum(),
        }
    }

    /// The tokens of a chunk.
    fn chunk(&self) -> usize {
        let length = |first: &ClipEncoder| match &first.tokenizer {
            Some(tokenizer) => tokenizer.max_length(),
            None => first.encoder.config().max_position_embeddings,
        };
        self.encoders.first().map_or(1, length).max(1)
    }

    /// The layer of a text's hidden state.
    fn layer(&self, options: &TextOptions) -> HiddenLayer {
        HiddenLayer { from_end: options.clip_skip.unwrap_or(self.layer.from_end), ..self.layer }
    }
}

impl TextStage for ClipText {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        let all = self.encoders.iter();
        all.map(|own| TextNetwork { segments: own.encoder.segments(), network: own.network }).collect()
    }

    fn ignores(&self) -> &'static [&'static str] {
        Self::IGNORES
    }

    fn effective(&self, options: TextOptions) -> TextOptions {
        TextOptions { clip_skip: Some(self.layer(&options).from_end), max_length: None, ..options }
    }

    fn tokenize(&self, text: &PromptText, words: &dyn Words) -> Result<Tokens> {
        tokenize(&self.encoders, self.chunk(), text, words)
    }

    fn sample(&self, number: usize) -> Tokens {
        sample(&self.encoders, self.chunk(), number)
    }

    fn least(&self) -> usize {
        self.chunk()
    }

    fn fit(&self, rows: &[usize], padded: bool) -> Result<usize> {
        let longest = rows.iter().copied().max().unwrap_or(self.chunk());
        if padded { Ok(longest) } else { common_multiple(rows, longest, self.chunk()) }
    }

    fn needs_empty(&self, length: usize, fill: &Fill) -> bool {
        length < fill.own || fill.padded && fill.parts < fill.total
    }

    /// The context is filled up; the pooled vector does not depend on the row.
    fn fill(&self, text: &TextTensors, fill: &Fill, empty: Option<&TextTensors>) -> Result<TextTensors> {
        let Some(context) = text.get(CONTEXT) else { return Ok(text.clone()) };
        let context = filled(context, fill, empty.and_then(|empty| empty.get(CONTEXT)))?;
        Ok(text.clone().with(CONTEXT, context))
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let layers: Vec<HiddenLayer> = texts.iter().map(|(text, _)| self.layer(&text.options)).collect();
        encode(&self.encoders, texts, (&layers, self.pooled), on)
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        vec![(CONTEXT, vec![1, length, self.context_width()]), (POOLED, vec![1, self.pooled_width()])]
    }

    /// The penultimate layer's hidden state, which takes as much memory as any other.
    fn dry_run(&self, device: &MetaDevice, _dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        let chunk = self.chunk();
        let mut outputs = Vec::new();
        for ClipEncoder { encoder, .. } in &self.encoders {
            let TextEncoderConfig { num_hidden_layers, max_position_embeddings, .. } = *encoder.config();
            let chunks = vec![vec![0; chunk.min(max_position_embeddings)]; length / chunk];
            let from_end = HiddenLayer::PENULTIMATE.from_end.min(num_hidden_layers);
            let layer = HiddenLayer { from_end, ..HiddenLayer::PENULTIMATE };
            for _ in 0..texts {
                let words = TokenEmbeddings::default();
                let output = encoder.forward(&chunks, None, layer, device, &words, &mut |_, _| ())?;
                outputs.extend([output.hidden, output.pooled]);
            }
        }
        Ok(outputs)
    }
}

impl EncoderConfig for TextEncoderConfig {
    fn width(&self) -> usize {
        self.hidden_size
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn layers_to_skip(&self) -> Option<usize> {
        Some(self.num_hidden_layers)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        if error.is_stopped() {
            return Self::Stopped;
        }
        Self::Network { out_of_memory: error.is_out_of_memory(), error: Box::new(error) }
    }
}
