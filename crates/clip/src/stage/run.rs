//! Runs the encoders one after another: from tokens to hidden states.

use std::sync::Arc;

use candle_core::{D, Tensor};
use kiln_network::text::{CONTEXT, Error, POOLED, PromptText, Result, Runs, TextDevice, TextTensors, Tokens};

use super::{ClipEncoder, ClipTokens, Pooled};
use crate::config::TextEncoderConfig;
use crate::encoder::HiddenLayer;
use crate::tokenizer::Tokenizer;
use crate::weighted::{RunPortion, WeightedText};

/// The multiply-accumulates for each token that a portion may have on the CPU, so that it takes less than a second.
const CPU_PORTION: usize = 1 << 28;
/// The chunks of a portion on a GPU. Usual texts have one portion.
const GPU_PORTION: usize = 16;

/// The maximum number of chunks that are encoded at once: between two portions a run can be stopped. On the CPU a text has the
/// same bits for any portion.
fn portion(config: &TextEncoderConfig, device: &TextDevice) -> usize {
    let layer = 12 * config.hidden_size.saturating_mul(config.hidden_size);
    let chunk = layer.saturating_mul(config.num_hidden_layers).max(1);
    if device.is_cpu() { (CPU_PORTION / chunk).clamp(1, GPU_PORTION) } else { GPU_PORTION }
}

/// How many of the first texts share a call: those of one layer and without words of their own, with at most `chunks` chunks in all.
fn together(texts: &[(usize, WeightedText<'_>)], chunks: usize) -> usize {
    let Some((_, first)) = texts.first() else { return 0 };
    let mut sum = 0;
    let shares = |(_, text): &&(usize, WeightedText<'_>)| {
        sum += text.chunks.len();
        sum <= chunks && text.layer == first.layer && text.words.is_empty()
    };
    texts.iter().take_while(shares).count().max(1)
}

/// Runs the portions of a text on the caller's threads.
struct Portions<'a> {
    on: &'a mut dyn Runs,
    network: usize,
    text: usize,
    texts: usize,
    /// The caller was asked before the first portion already.
    is_first: bool,
}

impl RunPortion for Portions<'_> {
    type Error = Error;

    fn run<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T> {
        if !std::mem::take(&mut self.is_first) {
            self.on.proceed(self.text, self.texts)?;
        }
        let (mut work, mut result) = (Some(work), None);
        self.on.run(self.network, &mut || result = work.take().map(|work| work()).or(result.take()));
        result.ok_or(Error::Stopped)
    }
}

/// Encodes texts, each with the hidden state of its layer, and with the pooled vectors of `which` encoders.
pub(super) fn encode(
    encoders: &[ClipEncoder],
    texts: &[(PromptText, Arc<Tokens>)],
    (layers, which): (&[HiddenLayer], Pooled),
    on: &mut dyn Runs,
) -> Result<Vec<TextTensors>> {
    let mut outputs = vec![(Vec::new(), Vec::new()); texts.len()];
    for (network, ClipEncoder { encoder, tokenizer, .. }) in encoders.iter().enumerate() {
        let device = on.enter(network)?;
        let empty = tokenizer.as_ref().map(Tokenizer::empty_chunk).unwrap_or_default();
        let mut all = Vec::with_capacity(texts.len());
        for (i, ((text, tokens), layer)) in texts.iter().zip(layers).enumerate() {
            if let Some((chunks, words)) = tokens.own().and_then(|own: &ClipTokens| own.of_encoder(network)) {
                let emphasis = text.options.emphasis;
                all.push((i, WeightedText { chunks, empty: &empty, emphasis, layer: *layer, words }));
            }
        }
        let rows = on.rows_of_call();
        let portion = rows.unwrap_or(portion(encoder.config(), &device));
        let mut rest = &all[..];
        while let Some(&(first, _)) = rest.first() {
            let (group, after) = rest.split_at(together(rest, rows.unwrap_or(1)));
            on.proceed(first, texts.len())?;
            let mut portions = Portions { on: &mut *on, network, text: first, texts: texts.len(), is_first: true };
            let group_texts: Vec<WeightedText<'_>> = group.iter().map(|(_, text)| *text).collect();
            let encoded = encoder.encode_together(&group_texts, &device, (portion, rows.is_some()), &mut portions)?;
            for ((i, _), output) in group.iter().zip(encoded) {
                let (contexts, pooled) = &mut outputs[*i];
                contexts.push(output.hidden.flatten(0, 1)?.unsqueeze(0)?); // (1, chunks * 77, d)
                pooled.push(output.pooled.narrow(0, 0, 1)?);
            }
            rest = after;
        }
        on.leave(network);
    }
    let join = |(contexts, pooled): (Vec<Tensor>, Vec<Tensor>)| -> Result<TextTensors> {
        let first = if which == Pooled::All { 0 } else { pooled.len().saturating_sub(1) };
        let pooled = Tensor::cat(pooled.get(first..).unwrap_or_default(), D::Minus1)?;
        Ok(TextTensors::default().with(CONTEXT, Tensor::cat(&contexts, D::Minus1)?).with(POOLED, pooled))
    };
    outputs.into_iter().map(join).collect()
}
