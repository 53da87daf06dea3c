//! A batch walked through without values: the bytes that each stage holds beside the weights.

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_nn::{DryRun, Shadow, shadow};
use kiln_ops::Target;
use kiln_unet::{ConditioningShadow, Unet};

use super::Work;
use crate::decoder::Network;
use crate::denoise;
use crate::picture;

/// Bytes beside the weights, in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Beside {
    pub(super) activations: usize,
    pub(super) workspace: usize,
    pub(super) conditions: usize,
}

/// Tokens of a chunk.
const TOKENS: usize = 77;
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

impl Networks<'_> {
    /// Encode, denoise, decode. Each network runs once: what it keeps stays for those after it.
    pub(super) fn beside_weights(&self, target: Target, work: &Work) -> [Beside; 3] {
        let run = DryRun::new(target);
        let _kept = run.ledger().hold(target.kept());
        let conditioning = self.encode(&run, work);
        let conditions = conditioning.bytes();
        let stage = || {
            let (peak, workspace) = (run.ledger().peak(), target.kept() + run.kept());
            run.ledger().reset_peak();
            Beside { activations: peak.saturating_sub(workspace + conditions), workspace, conditions }
        };
        let encoded = stage();
        let latents = self.denoise(&run, work, &conditioning);
        let denoised = stage();
        self.decode(&latents);
        [encoded, denoised, stage()]
    }

    /// The texts one after another, then their conditions for every image.
    fn encode(&self, run: &DryRun, work: &Work) -> ConditioningShadow {
        let texts = if work.guided { 2 } else { 1 };
        let encode = |encoder: &TextEncoder| {
            (0..texts).map(|_| encoder.shadow(run, work.chunks, self.layer, self.dtype)).collect::<Vec<_>>()
        };
        let _encoded: Vec<_> = self.text.iter().map(encode).collect();
        self.unet.conditioning_shadow(run, work.images(), work.chunks * TOKENS, self.dtype)
    }

    /// One step between the sampler's tensors; gives the latents.
    fn denoise(&self, run: &DryRun, work: &Work, conditioning: &ConditioningShadow) -> Shadow {
        let (h, w) = (work.height / self.downscale, work.width / self.downscale);
        let latents = run.tensor(&[work.batch_size, self.unet.config().in_channels, h, w], DType::F32);
        let _state: Vec<_> = (0..SAMPLER_STATE).map(|_| latents.copy()).collect();
        // A recorded step has inputs of its own.
        let _recorded = run.target().is_card().then(|| conditioning.copy());
        let _y = denoise::shadow(self.unet, &latents, conditioning, work.guided, self.dtype);
        latents
    }

    /// One picture, up to its bytes.
    fn decode(&self, latents: &Shadow) {
        let one = latents.view(&[&[1], &latents.dims()[1..]].concat());
        let image = self.decoder.shadow(&one, self.decoder_dtype);
        if !image.run().target().is_card() {
            picture::shadow(&shadow::elementwise(&image));
        }
    }
}
