//! A text stage of bytes: each byte of a text is a token, and all texts have one length.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use kiln_network::text::{
    CONTEXT, EncoderConfig, Error, Fill, POOLED, PromptText, Result, Runs, TextDevice, TextNetwork, TextStage,
    TextTensors, Tokens, Words,
};
use kiln_nn::ops::portable::PortableTensor;
use kiln_nn::{Embedding, Linear, MetaDevice, MetaTensor, TensorLike};
use kiln_prompt::TextOptions;
use kiln_weights::{SegmentModule, Segments};
use serde::Deserialize;

use crate::error::Error as FamilyError;

/// The tokens of every text.
const LENGTH: usize = 16;
/// The token of a byte is its value and 1; 0 is padding.
const TOKENS: usize = 257;

/// The configuration of the encoder.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct ByteTextConfig {
    /// Channels of the tokens.
    hidden_size: usize,
}

impl ByteTextConfig {
    /// Reads the text of a `config.json`.
    pub(super) fn from_json(text: &str) -> Result<Self, FamilyError> {
        let wrong = |found: String| FamilyError::Config { key: "hidden_size", found, expected: "from 1 to 4096" };
        let config: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if (1..=4096).contains(&config.hidden_size) { Ok(config) } else { Err(wrong(config.hidden_size.to_string())) }
    }
}

impl EncoderConfig for ByteTextConfig {
    fn width(&self) -> usize {
        self.hidden_size
    }

    fn vocab_size(&self) -> usize {
        TOKENS
    }
}

/// A table of vectors for bytes, and a linear layer.
pub(super) struct ByteText {
    config: ByteTextConfig,
    segments: Segments,
    table: SegmentModule<Embedding>,
    out: SegmentModule<Linear>,
}

impl ByteText {
    pub(super) fn new(config: ByteTextConfig) -> Self {
        let (mut segments, width) = (Segments::default(), config.hidden_size);
        let table = segments.add_in_source("byte_table", |p| Embedding::new(&p.pp("byte_table"), TOKENS, width));
        let out = segments.add("out", |p| Linear::new(&p.pp("out"), width, width, true));
        Self { config, segments, table, out }
    }

    /// The tensors of a text, `(1, LENGTH, d)` and `(1, d)`.
    fn forward<T: TensorLike>(&self, ids: &[u32], device: &T::Device) -> kiln_nn::Result<[T; 2]> {
        let width = self.config.hidden_size;
        let rows = T::run(&self.table, |table| {
            table.forward::<T>(ids, device)?.reshape(&[1, ids.len(), width])?.to_device(device)
        })?;
        let rows = T::run(&self.out, |out| out.forward(&rows))?;
        let pooled = rows.narrow(1, 0, 1)?.reshape(&[1, width])?;
        Ok([rows, pooled])
    }

    /// The tensors of a text on any device.
    fn encode_one(&self, ids: &[u32], device: &TextDevice) -> kiln_nn::Result<[Tensor; 2]> {
        match device {
            TextDevice::Candle { device, .. } => self.forward(ids, device),
            TextDevice::Backend(backend) => {
                let [rows, pooled] = self.forward::<PortableTensor>(ids, backend)?;
                Ok([rows.download()?, pooled.download()?])
            }
        }
    }
}

impl TextStage for ByteText {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        vec![TextNetwork { segments: &self.segments, network: None }]
    }

    fn ignores(&self) -> &'static [&'static str] {
        &["clip_skip", "chunk_cut", "comma_backtrack", "max_length"]
    }

    fn effective(&self, _options: TextOptions) -> TextOptions {
        TextOptions::default()
    }

    fn tokenize(&self, text: &PromptText, _words: &dyn Words) -> Result<Tokens> {
        let mut ids: Vec<u32> = text.text.bytes().take(LENGTH).map(|byte| u32::from(byte) + 1).collect();
        let used = ids.len();
        ids.resize(LENGTH, 0);
        Ok(Tokens::new(LENGTH, ids).with_room(used, LENGTH))
    }

    fn sample(&self, number: usize) -> Tokens {
        Tokens::new(LENGTH, vec![(number % TOKENS) as u32; LENGTH])
    }

    fn least(&self) -> usize {
        LENGTH
    }

    fn fit(&self, _rows: &[usize], _padded: bool) -> Result<usize> {
        Ok(LENGTH)
    }

    fn needs_empty(&self, _length: usize, _fill: &Fill) -> bool {
        false
    }

    fn fill(&self, text: &TextTensors, _fill: &Fill, _empty: Option<&TextTensors>) -> Result<TextTensors> {
        Ok(text.clone())
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let device = on.enter(0)?;
        let mut all = Vec::with_capacity(texts.len());
        for (i, (_, tokens)) in texts.iter().enumerate() {
            on.proceed(i, texts.len())?;
            let ids = tokens.own::<Vec<u32>>().cloned().unwrap_or_default();
            let mut result = None;
            on.run(0, &mut || result = Some(self.encode_one(&ids, &device)));
            let [rows, pooled] = result.ok_or(Error::Stopped)??;
            all.push(TextTensors::default().with(CONTEXT, rows).with(POOLED, pooled));
        }
        on.leave(0);
        Ok(all)
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        let width = self.config.hidden_size;
        vec![(CONTEXT, vec![1, length, width]), (POOLED, vec![1, width])]
    }

    fn dry_run(&self, device: &MetaDevice, _dtype: DType, _length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        let one = |_| self.forward::<MetaTensor>(&[0; LENGTH], device);
        let outputs = (0..texts).map(one).collect::<kiln_nn::Result<Vec<_>>>()?;
        Ok(outputs.into_iter().flatten().collect())
    }
}
