//! A batch walked through without values: the bytes that each stage holds beside the weights.

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_nn::{DryRun, Shadow, shadow};
use kiln_unet::{ConditioningShadow, Unet};
use kiln_vae::Tiling;

use super::{RunsOn, Work};
use crate::decoder::Network;
use crate::denoise;
use crate::error::Result;
use crate::host_memory;
use crate::picture;
use crate::setup::CACHED_TEXTS;

/// Bytes beside the weights, in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Beside {
    pub(super) activations: usize,
    pub(super) workspace: usize,
    pub(super) conditions: usize,
    /// Kept by the pool between blocks.
    pub(super) waiting: usize,
}

/// Tokens of a chunk.
pub(super) const TOKENS: usize = 77;
/// Latents of a batch that a sampler keeps at most, with its noise: UniPC's and LMS' history.
const SAMPLER_STATE: usize = 8;

/// The networks of a batch, and in which types they run.
pub(super) struct Networks<'a> {
    pub(super) text: &'a [TextEncoder],
    pub(super) layer: HiddenLayer,
    pub(super) unet: &'a Unet,
    pub(super) decoder: &'a Network,
    pub(super) dtype: DType,
    pub(super) decoder_dtype: DType,
    /// Pixels of a latent in each direction.
    pub(super) downscale: usize,
}

/// Decoding in every tiling, the fastest first.
pub(super) type Decoding = Vec<(Tiling, Beside)>;

impl Beside {
    /// All of it.
    pub(super) fn total(&self) -> usize {
        self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Networks<'_> {
    /// Encoding and denoising, and decoding in every tiling that there is for `work`. Each network runs once: what it
    /// keeps stays for those after it.
    pub(super) fn beside_weights(&self, on: RunsOn, work: &Work) -> Result<([Beside; 2], Decoding)> {
        let target = on.target;
        let run = DryRun::with_matrices(target, on.matrices);
        let _kept = run.ledger().hold(target.kept());
        let (conditioning, scheduled) = self.encode(&run, work);
        let conditions = conditioning.bytes() + scheduled.iter().map(Shadow::bytes).sum::<usize>();
        let stage = || {
            let (peak, workspace) = (run.ledger().peak(), target.kept() + run.kept());
            let waiting = run.ledger().peak_reserved().saturating_sub(peak);
            run.ledger().trim(host_memory::TRIM_ABOVE);
            run.ledger().reset_peak();
            Beside { activations: peak.saturating_sub(workspace + conditions), workspace, conditions, waiting }
        };
        let encoded = stage();
        let latents = self.denoise(&run, work, &conditioning);
        let denoised = stage();
        let decoded = work.vae.tilings(work.height, target).into_iter().map(|tiling| {
            self.decode(&latents, tiling)?;
            Ok((tiling, stage()))
        });
        Ok(([encoded, denoised], decoded.collect::<Result<_>>()?))
    }

    /// The texts one after another, then their conditions for every image; and what texts of schedules hold besides
    /// until the last step.
    fn encode(&self, run: &DryRun, work: &Work) -> (ConditioningShadow, Vec<Shadow>) {
        let texts = work.usual_texts();
        let width: usize = self.text.iter().map(|encoder| encoder.config().hidden_size).sum();
        let others = work.encoded_texts() - texts;
        // Those that the cache keeps are there a second time, without the empty chunks behind them.
        let cached = if work.encoded_texts() <= CACHED_TEXTS { others } else { 0 };
        let scheduled =
            (0..others + cached).map(|_| run.tensor(&[1, work.chunks * TOKENS, width], self.dtype)).collect();
        let encode = |encoder: &TextEncoder| {
            (0..texts).map(|_| encoder.shadow(run, work.chunks, self.layer, self.dtype)).collect::<Vec<_>>()
        };
        let _encoded: Vec<_> = self.text.iter().map(encode).collect();
        (self.unet.conditioning_shadow(run, work.images(), work.chunks * TOKENS, self.dtype), scheduled)
    }

    /// One step between the sampler's tensors; gives the latents.
    fn denoise(&self, run: &DryRun, work: &Work, conditioning: &ConditioningShadow) -> Shadow {
        let (h, w) = (work.height / self.downscale, work.width / self.downscale);
        let latents = run.tensor(&[work.batch_size, self.unet.config().in_channels, h, w], DType::F32);
        let _state: Vec<_> = (0..SAMPLER_STATE).map(|_| latents.copy()).collect();
        // A recorded step has inputs of its own.
        let _recorded = run.target().is_card().then(|| conditioning.copy());
        let _y = denoise::shadow(self.unet, &latents, conditioning, work.guided.then_some(work.parts), self.dtype);
        latents
    }

    /// One picture, up to its bytes.
    fn decode(&self, latents: &Shadow, tiling: Tiling) -> Result<()> {
        let one = latents.view(&[&[1], &latents.dims()[1..]].concat());
        let image = self.decoder.shadow(&one, self.decoder_dtype, tiling)?;
        if !image.run().target().is_card() {
            picture::shadow(&shadow::elementwise(&image));
        }
        Ok(())
    }
}
