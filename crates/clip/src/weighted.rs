//! Encodes weighted chunks to hidden states.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use kiln_network::text::TextDevice;
use kiln_prompt::Emphasis;
use kiln_prompt::emphasis::{away_from_empty, blend_of, mean, restore_mean, scale};

use crate::chunk::Chunk;
use crate::encoder::{HiddenLayer, TextEncoder, TextOutput};
use crate::error::{Error, Result};
use crate::textual_inversion::TokenEmbeddings;

/// A text as it is encoded.
#[derive(Debug, Clone, Copy)]
pub struct WeightedText<'a> {
    /// Its chunks, with their weights.
    pub chunks: &'a [Chunk],
    /// The chunk of an empty text.
    pub empty: &'a [u32],
    /// The effect of the weights.
    pub emphasis: Emphasis,
    /// The hidden state to return.
    pub layer: HiddenLayer,
    /// The embeddings with which the chunks were made.
    pub words: &'a TokenEmbeddings,
}

/// Runs the portions in which a text is encoded, one after another.
pub trait RunPortion {
    /// The errors of the caller, who may stop between two portions.
    type Error: From<Error>;

    /// Runs one portion.
    ///
    /// # Errors
    /// The reason to stop before it.
    fn run<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T, Self::Error>;
}

/// Runs all portions on the calling thread.
struct AtOnce;

impl RunPortion for AtOnce {
    type Error = Error;

    fn run<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(work())
    }
}

impl TextEncoder {
    /// Encodes the chunks of one prompt and applies their weights to the hidden states. The pooled vectors do not
    /// change. `empty` is the chunk of an empty text; `words` are the embeddings with which the chunks were made. If no
    /// weight differs from 1, nothing is weighted.
    ///
    /// # Errors
    /// See [`TextEncoder::encode`].
    pub fn encode_weighted(
        &self,
        chunks: &[Chunk],
        empty: &[u32],
        emphasis: Emphasis,
        layer: HiddenLayer,
        device: &Device,
        words: &TokenEmbeddings,
    ) -> Result<TextOutput> {
        let text = WeightedText { chunks, empty, emphasis, layer, words };
        self.encode_in_portions(&text, &device.clone().into(), usize::MAX, &mut AtOnce)
    }

    /// Encodes texts of one layer and the same `words`, whose chunks share portions ([`Self::encode_in_portions`]). If the second of `portion`
    /// is true, the last portion is filled up: all calls have the same number of rows, and a text the same bits on a GPU in any call.
    ///
    /// # Errors
    /// See [`Self::encode_in_portions`].
    pub fn encode_together<P: RunPortion>(
        &self,
        texts: &[WeightedText<'_>],
        device: &TextDevice,
        (portion, fills): (usize, bool),
        portions: &mut P,
    ) -> Result<Vec<TextOutput>, P::Error> {
        let Some(WeightedText { layer, words, .. }) = texts.first() else { return Ok(Vec::new()) };
        let mut ids: Vec<Vec<u32>> = texts.iter().flat_map(|text| text.chunks).map(|chunk| chunk.ids.clone()).collect();
        self.check(&ids, *layer, words)?;
        let portion = portion.max(1);
        if let Some(last) = ids.last().cloned().filter(|_| fills) {
            ids.resize(ids.len().next_multiple_of(portion), last);
        }
        let mut parts = Vec::new();
        for ids in ids.chunks(portion) {
            parts.push(portions.run(|| self.encode_on(ids, None, *layer, device, words))??);
        }
        let all = joined(parts)?;
        if let ([text], false) = (texts, fills) {
            return Ok(vec![self.weighted(text, all, device, portions)?]);
        }
        let (mut start, mut outputs) = (0, Vec::with_capacity(texts.len()));
        for text in texts {
            // Copies: one text that is kept does not keep the memory of all.
            let own =
                |all: &Tensor| all.narrow(0, start, text.chunks.len()).and_then(|own| own.copy()).map_err(of_tensors);
            let output = TextOutput { hidden: own(&all.hidden)?, pooled: own(&all.pooled)? };
            outputs.push(self.weighted(text, output, device, portions)?);
            start += text.chunks.len();
        }
        Ok(outputs)
    }

    /// As [`Self::encode_weighted`] on any device, in portions of at most `portion` chunks, at least 1. `portions` runs each of them,
    /// and each of the additional runs of [`Emphasis::Compel`]. The results are on `device`; with Vulkan, Metal and DirectX 12 the GPU
    /// copies them to the CPU's memory.
    ///
    /// # Errors
    /// See [`TextEncoder::encode`] and of `portions`.
    pub fn encode_in_portions<P: RunPortion>(
        &self,
        text: &WeightedText<'_>,
        device: &TextDevice,
        portion: usize,
        portions: &mut P,
    ) -> Result<TextOutput, P::Error> {
        let output = self.encode_together(std::slice::from_ref(text), device, (portion, false), portions)?;
        Ok(output.into_iter().next().ok_or(Error::NoChunks)?)
    }

    /// `output` of the chunks of a text with their weights applied.
    fn weighted<P: RunPortion>(
        &self,
        text: &WeightedText<'_>,
        mut output: TextOutput,
        device: &TextDevice,
        portions: &mut P,
    ) -> Result<TextOutput, P::Error> {
        let WeightedText { chunks, empty, emphasis, layer, .. } = *text;
        let used = !matches!(emphasis, Emphasis::Ignore | Emphasis::None);
        if !used || chunks.iter().flat_map(|chunk| &chunk.weights).all(|&weight| weight == 1.0) {
            return Ok(output);
        }
        let empty = match emphasis {
            Emphasis::Comfy | Emphasis::Compel => {
                let words = TokenEmbeddings::default();
                host(&portions.run(|| self.encode_on(&[empty.to_vec()], None, layer, device, &words))??.hidden)?
            }
            _ => Vec::new(),
        };
        let mut states = host(&output.hidden)?; // chunks of (tokens, d), one after another
        let size = states.len() / chunks.len();
        for (z, chunk) in states.chunks_exact_mut(size).zip(chunks) {
            match emphasis {
                Emphasis::Original => {
                    let wanted = mean(z);
                    scale(z, &chunk.weights);
                    restore_mean(z, wanted);
                }
                Emphasis::NoNorm => scale(z, &chunk.weights),
                Emphasis::Comfy | Emphasis::Compel => away_from_empty(z, &empty, &chunk.weights),
                Emphasis::Ignore | Emphasis::None => {}
            }
        }
        if emphasis == Emphasis::Compel {
            self.blend_without(text, &mut states, &empty, device, portions)?;
        }
        let shape = output.hidden.shape();
        let weighted = Tensor::from_vec(states, shape, &Device::Cpu).and_then(|z| z.to_dtype(output.hidden.dtype()));
        output.hidden = weighted.and_then(|z| z.to_device(output.hidden.device())).map_err(of_tensors)?;
        Ok(output)
    }

    /// compel's blend: for each span with a weight below 1, the states of the prompt with the span masked are mixed in.
    /// The lower the weight, the larger their share.
    fn blend_without<P: RunPortion>(
        &self,
        &WeightedText { chunks, layer, words, .. }: &WeightedText<'_>,
        states: &mut [f32],
        empty: &[f32],
        device: &TextDevice,
        portions: &mut P,
    ) -> Result<(), P::Error> {
        let tokens = chunks.iter().flat_map(|chunk| chunk.spans.iter().zip(&chunk.weights));
        let blends: BTreeMap<usize, f32> = tokens
            .filter(|&(_, &weight)| weight < 1.0)
            .filter_map(|(&span, &weight)| Some((span?, blend_of(weight))))
            .collect();
        let sum: f32 = 1.0 + blends.values().sum::<f32>();
        for (z, chunk) in states.chunks_exact_mut(empty.len()).zip(chunks) {
            let whole = z.to_vec();
            // In f64, because a weight of 0 blends with a factor of 60,000.
            let mut blended: Vec<f64> = whole.iter().map(|&value| f64::from(value / sum)).collect();
            for (&span, &blend) in &blends {
                let mut without = whole.clone();
                if chunk.spans.contains(&Some(span)) {
                    let seen: Vec<f32> =
                        chunk.spans.iter().map(|&of| if of == Some(span) { 0.0 } else { 1.0 }).collect();
                    let ids = [chunk.ids.clone()];
                    let masked = portions.run(|| self.encode_on(&ids, Some(&seen), layer, device, words))??;
                    without = host(&masked.hidden)?;
                    away_from_empty(&mut without, empty, &chunk.weights);
                }
                blended.iter_mut().zip(without).for_each(|(sum_so_far, value)| {
                    *sum_so_far += f64::from(value * (blend / sum));
                });
            }
            z.iter_mut().zip(blended).for_each(|(value, blended)| *value = blended as f32);
        }
        Ok(())
    }
}

/// The outputs of portions as one.
fn joined(mut parts: Vec<TextOutput>) -> Result<TextOutput> {
    if parts.len() == 1 {
        return parts.pop().ok_or(Error::NoChunks);
    }
    let cat =
        |of: fn(&TextOutput) -> &Tensor| Tensor::cat(&parts.iter().map(of).collect::<Vec<_>>(), 0).map_err(of_tensors);
    Ok(TextOutput { hidden: cat(|part| &part.hidden)?, pooled: cat(|part| &part.pooled)? })
}

fn of_tensors(error: candle_core::Error) -> Error {
    kiln_nn::Error::from(error).into()
}

/// The values of a tensor in f32, on the host.
fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    let flat = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all());
    flat.and_then(|flat| flat.to_vec1()).map_err(of_tensors)
}
