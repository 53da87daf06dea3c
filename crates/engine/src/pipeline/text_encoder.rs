//! Text encoders with their tokenizers: from tokens to hidden states.

use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use kiln_clip::{RunPortion, TextEncoder, TextEncoderConfig, Tokenizer, WeightedText};
use kiln_models::ModelFolder;
use kiln_weights::Placement;

use crate::component::{ComponentOptions, LoadedComponent, WeightResidency};
use crate::component_spec::ComponentSpec;
use crate::error::{Error, Result};
use crate::pipeline::text_cache::{Encoded, Key};
use crate::pipeline::tokens::TextTokens;

/// One text encoder.
pub(super) struct Encoder {
    pub(super) tokenizer: Tokenizer,
    pub(super) encoder: TextEncoder,
    pub(super) part: LoadedComponent,
}

/// Asked before a text or a portion of it is encoded, with the text's number among those of the encoder and with how many there are. An error stops.
pub(crate) type Proceed<'a> = dyn FnMut(usize, usize) -> Result<()> + 'a;

impl Encoder {
    /// Opens encoder `i` of a model. No weights are read.
    ///
    /// # Errors
    /// Errors of its files, and of weights that do not fit its configuration.
    pub(super) fn open(
        model: &ModelFolder,
        (i, config): (usize, &TextEncoderConfig),
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Result<Self> {
        let tokenizer = model.tokenizer(i)?;
        let encoder = TextEncoder::new(config.clone())?;
        let (source, network) = (model.files().text_encoder(i)?, format!("text encoder {i}"));
        let spec = ComponentSpec::TEXT;
        let part = LoadedComponent::shared(spec, encoder.segments(), source, placement, options, &network);
        part.check()?;
        Ok(Self { tokenizer, encoder, part })
    }
}

/// The multiply-accumulates for each token that a portion may have on the CPU, so that it takes less than a second.
const CPU_PORTION: usize = 1 << 28;
/// The chunks of a portion on a GPU. Usual texts have one portion.
const GPU_PORTION: usize = 16;

/// The most chunks that are encoded at once: between two portions a run can be stopped. On the CPU a text has the same bits
/// for any portion.
fn portion(config: &TextEncoderConfig, device: &Device) -> usize {
    let layer = 12 * config.hidden_size.saturating_mul(config.hidden_size);
    let chunk = layer.saturating_mul(config.num_hidden_layers).max(1);
    if device.is_cpu() { (CPU_PORTION / chunk).clamp(1, GPU_PORTION) } else { GPU_PORTION }
}

/// Runs the portions of a text on the engine's threads.
struct Portions<'a> {
    part: &'a LoadedComponent,
    /// Before the first portion the caller was asked already.
    is_first: bool,
    proceed: &'a mut dyn FnMut() -> Result<()>,
}

impl RunPortion for Portions<'_> {
    type Error = Error;

    fn run<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T> {
        if !std::mem::take(&mut self.is_first) {
            (self.proceed)()?;
        }
        Ok(self.part.run(work))
    }
}

/// The tokens of a chunk.
pub(super) fn chunk_length(encoders: &[Encoder]) -> usize {
    encoders.first().map_or(1, |encoder| encoder.tokenizer.max_length()).max(1)
}

/// Runs the encoders, one after another, for results on `device`. An encoder's weights are read as `keep` says when its turn
/// comes; unless they are `kept`, they go after it. `proceed` is asked before each text, and between the portions of a long one.
pub(super) fn run(
    encoders: &[Encoder],
    texts: &[(Key, Arc<TextTokens>)],
    (keep, kept): (&WeightResidency, bool),
    device: &Device,
    proceed: &mut Proceed<'_>,
) -> Result<Vec<Encoded>> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let mut contexts = vec![Vec::new(); texts.len()];
    let mut pooled = Vec::new();
    for (number, Encoder { tokenizer, encoder, part }) in encoders.iter().enumerate() {
        pooled.clear();
        part.enter(keep)?;
        for (i, ((key, tokens), contexts)) in texts.iter().zip(&mut contexts).enumerate() {
            proceed(i, texts.len())?;
            let Some((chunks, words)) = tokens.of_encoder(number) else { continue };
            let empty = tokenizer.empty_chunk();
            let own = &part.placement().device;
            let text = WeightedText { chunks, empty: &empty, emphasis: key.emphasis, layer: key.layer, words };
            let mut proceed = || proceed(i, texts.len());
            let mut portions = Portions { part, is_first: true, proceed: &mut proceed };
            let output = encoder.encode_in_portions(&text, own, portion(encoder.config(), own), &mut portions)?;
            contexts.push(output.hidden.flatten(0, 1)?.unsqueeze(0)?); // (1, chunks * 77, d)
            pooled.push(output.pooled.narrow(0, 0, 1)?);
        }
        if !kept {
            part.leave();
        }
    }
    let join = |(contexts, pooled): (Vec<Tensor>, Tensor)| -> Result<Encoded> {
        let encoded = Encoded { context: Tensor::cat(&contexts, D::Minus1)?, pooled };
        // Between two streams of a GPU values go through the host, which also waits for them.
        let same = encoded.context.device().same_device(device);
        if same { Ok(encoded) } else { encoded.on(&Device::Cpu) }
    };
    contexts.into_iter().zip(pooled).map(join).collect()
}
