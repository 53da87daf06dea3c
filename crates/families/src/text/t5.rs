//! A T5 text encoder as a part of a text stage: texts of one length, with weights of words.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use kiln_network::text::{Error, Result, Runs, TextDevice};
use kiln_prompt::emphasis::{away_from_empty, mean, restore_mean, scale};
use kiln_prompt::{Emphasis, Span, spans};
use kiln_t5::{T5Encoder, T5Ids, Tokenizer};
use kiln_weights::Network;

/// Texts that share a pass through the encoder, whose weights may be read once for all of them.
pub(super) const PORTION: usize = 16;

/// A T5 text encoder of a model.
pub struct T5Part {
    /// The network.
    pub encoder: T5Encoder,
    /// Its tokenizer; `None` for plans and measurements, which encode no text of a prompt.
    pub tokenizer: Option<Tokenizer>,
    /// Its name for LoRAs.
    pub network: Option<Network>,
}

/// One text as the encoder takes it.
#[derive(Debug, Clone)]
pub(super) struct T5Tokens {
    /// The text's tokens that fit, the end token, padding.
    pub(super) ids: Vec<u32>,
    /// The weight of each token; the end token and padding have weight 1.
    weights: Vec<f32>,
    /// Ids of an empty text of this length.
    empty: Vec<u32>,
    /// Tokens at the end that no other token attends.
    masked: usize,
    /// The number of the text's tokens, also of those that do not fit.
    pub(super) used: usize,
    /// The end of the text that does not fit.
    pub(super) cut: Option<String>,
}

impl T5Tokens {
    /// The weight that differs most from 0.
    pub(super) fn heaviest(&self) -> f32 {
        let heavier = |most: f32, &weight: &f32| if weight.abs() > most.abs() { weight } else { most };
        self.weights.iter().fold(1.0, heavier)
    }

    /// Ids that count up from `number`, without weights.
    pub(super) fn sample(number: usize, length: usize, vocab_size: usize) -> Self {
        let ids = (0..length).map(|i| ((i + number) % vocab_size.max(1)) as u32).collect();
        Self { ids, weights: vec![1.0; length], empty: vec![0; length], masked: 0, used: length, cut: None }
    }

    /// These tokens without padding but for one token, if it has a place behind the end token.
    pub(super) fn with_one_pad(mut self) -> Self {
        let kept = self.ids.len().min(self.used.saturating_add(2));
        self.masked = kept.saturating_sub(self.used.saturating_add(1)).min(1);
        self.ids.truncate(kept);
        self.weights.truncate(kept);
        self.empty.truncate(kept);
        self
    }

    /// How the weights act, unless they change nothing.
    fn weighted(&self, emphasis: Emphasis) -> Option<Emphasis> {
        let is_weighted = self.weights.iter().any(|&weight| weight != 1.0);
        Some(emphasis).filter(|emphasis| is_weighted && !matches!(emphasis, Emphasis::Ignore | Emphasis::None))
    }
}

impl T5Part {
    /// The tokens of a text with weights of words, framed to `length`. As in Forge (`backend/text_processing/t5_engine.py`) the
    /// spans of a weight are tokenized one by one. `BREAK` is left out: a text has one length.
    pub(super) fn tokenize(&self, text: &str, emphasis: Emphasis, length: usize) -> Result<T5Tokens> {
        let missing = || kiln_t5::Error::Tokenize("the text encoder was opened without its tokenizer".into());
        let tokenizer = self.tokenizer.as_ref().ok_or_else(missing)?;
        let spans = match emphasis {
            Emphasis::None => vec![Span::plain(text)],
            _ => spans(text),
        };
        let room = length.saturating_sub(1);
        let (mut ids, mut weights, mut cut) = (Vec::new(), Vec::new(), String::new());
        for span in spans.iter().filter(|span| !span.is_break()) {
            let own = tokenizer.encode(&span.text)?;
            if ids.len() + own.len() > room {
                cut += tokenizer.text_from(&span.text, room.saturating_sub(ids.len()))?;
            }
            weights.extend(own.iter().map(|_| span.weight as f32));
            ids.extend(own);
        }
        weights.truncate(room);
        weights.resize(length, 1.0);
        let (used, cut) = (ids.len(), Some(cut.trim().to_string()).filter(|cut| !cut.is_empty()));
        Ok(T5Tokens {
            ids: tokenizer.frame(&ids, length),
            weights,
            empty: tokenizer.frame(&[], length),
            masked: 0,
            used,
            cut,
        })
    }

    /// Encodes texts on network `network` of `on`: hidden states `(1, length, d_model)` for each one, with its weights applied.
    pub(super) fn encode(
        &self,
        texts: &[(&T5Tokens, Emphasis)],
        network: usize,
        on: &mut dyn Runs,
    ) -> Result<Vec<Tensor>> {
        let device = on.enter(network)?;
        let mut all = Vec::with_capacity(texts.len());
        for (i, portion) in texts.chunks(PORTION).enumerate() {
            on.proceed(i * PORTION, texts.len())?;
            let ids =
                portion.iter().map(|(tokens, _)| T5Ids { ids: tokens.ids.clone(), masked: tokens.masked }).collect();
            all.extend(self.run(ids, &device, network, on)?);
        }
        let mut empty = HashMap::new();
        for (states, (tokens, emphasis)) in all.iter_mut().zip(texts) {
            let Some(emphasis) = tokens.weighted(*emphasis) else { continue };
            let is_relative = matches!(emphasis, Emphasis::Comfy | Emphasis::Compel);
            if is_relative && !empty.contains_key(&tokens.empty) {
                let encoded = self.run(vec![T5Ids::from(tokens.empty.clone())], &device, network, on)?;
                let values = encoded.first().map_or(Ok(Vec::new()), host)?;
                empty.insert(tokens.empty.clone(), values);
            }
            let empty = empty.get(&tokens.empty).map(Vec::as_slice).unwrap_or_default();
            *states = weigh(states, &tokens.weights, emphasis, empty)?;
        }
        on.leave(network);
        Ok(all)
    }

    /// Runs the network once, on the caller's threads.
    fn run(&self, ids: Vec<T5Ids>, device: &TextDevice, network: usize, on: &mut dyn Runs) -> Result<Vec<Tensor>> {
        let mut result = None;
        on.run(network, &mut || result = Some(self.encoder.encode_on(&ids, device)));
        Ok(result.ok_or(Error::Stopped)??)
    }
}

/// Applies weights to hidden states `(1, tokens, d)`, as Forge does to T5's. The parts of a prompt that [`Emphasis::Compel`] blends
/// have no masks here: it is [`Emphasis::Comfy`].
fn weigh(states: &Tensor, weights: &[f32], emphasis: Emphasis, empty: &[f32]) -> Result<Tensor> {
    let mut z = host(states)?;
    match emphasis {
        Emphasis::Original => {
            let wanted = mean(&z);
            scale(&mut z, weights);
            restore_mean(&mut z, wanted);
        }
        Emphasis::NoNorm => scale(&mut z, weights),
        Emphasis::Comfy | Emphasis::Compel => away_from_empty(&mut z, empty, weights),
        Emphasis::Ignore | Emphasis::None => {}
    }
    let weighted = Tensor::from_vec(z, states.shape(), &Device::Cpu)?.to_dtype(states.dtype())?;
    Ok(weighted.to_device(states.device())?)
}

/// The values of a tensor in f32, on the host.
fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
