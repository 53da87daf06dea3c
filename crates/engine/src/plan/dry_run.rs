//! A dry run of a batch: the networks run with tensors that have no elements, in the order of a run, and what each stage
//! holds besides weights is counted.

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder, TextOutput, TokenEmbeddings};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, Unet};
use kiln_vae::Tiling;

use super::{RunsOn, Work};
use crate::decoder::Network;
use crate::denoise::{Constants, guided_step};
use crate::error::Result;
use crate::host_memory;
use crate::picture;
use crate::setup::CACHED_TEXTS;

/// Bytes besides weights, in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StageBytes {
    pub(super) activations: usize,
    pub(super) workspace: usize,
    pub(super) conditions: usize,
    /// Fragmentation in the pool.
    pub(super) waiting: usize,
}

/// Tokens in a chunk.
pub(super) const TOKENS: usize = 77;
/// The maximum number of stored latents of a sampler, including noise: the history of UniPC and LMS.
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

/// What a batch holds and computes.
pub(super) struct DryRun {
    /// Encoding and denoising.
    pub(super) stages: [StageBytes; 2],
    /// Decoding in every tiling, the fastest first.
    pub(super) decoding: Vec<(Tiling, StageBytes)>,
    /// Floating-point operations of each of the U-Net's segments in a step.
    pub(super) step_flop: Vec<f64>,
}

impl StageBytes {
    /// The sum.
    pub(super) fn total(&self) -> usize {
        self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Networks<'_> {
    /// Encodes, denoises, and decodes in every tiling that there is for `work`. Each network runs once: what it keeps stays
    /// for those after it.
    pub(super) fn dry_run(&self, on: RunsOn, work: &Work) -> Result<DryRun> {
        let target = on.target;
        let device = MetaDevice::with_matrices(target, self.dtype, on.matrices);
        let _kept = device.ledger().hold(target.kept());
        let (conditioning, scheduled) = self.encode(&device, work)?;
        let conditions = conditioning.bytes() + scheduled.iter().map(MetaTensor::bytes).sum::<usize>();
        let stage = || {
            let (peak, workspace) = (device.ledger().peak(), target.kept() + device.kept());
            let waiting = device.ledger().peak_reserved().saturating_sub(peak);
            device.ledger().trim(host_memory::TRIM_ABOVE);
            device.ledger().reset_peak();
            StageBytes { activations: peak.saturating_sub(workspace + conditions), workspace, conditions, waiting }
        };
        let encoded = stage();
        device.take_flop();
        let latents = self.denoise(&device, work, &conditioning)?;
        let step_flop = device.take_flop().by_segment(self.unet.segments());
        let denoised = stage();
        let decoding = work.vae.tilings(work.height, target).into_iter().map(|tiling| {
            self.decode(&latents, tiling)?;
            Ok((tiling, stage()))
        });
        Ok(DryRun { stages: [encoded, denoised], decoding: decoding.collect::<Result<_>>()?, step_flop })
    }

    /// The texts one after another, then their conditions for every image; and what texts of schedules hold besides until
    /// the last step.
    fn encode(&self, device: &MetaDevice, work: &Work) -> Result<(Conditioning<MetaTensor>, Vec<MetaTensor>)> {
        let texts = work.usual_texts();
        let width: usize = self.text.iter().map(|encoder| encoder.config().hidden_size).sum();
        let others = work.encoded_texts() - texts;
        // Those that the cache keeps are there a second time, without the chunks that make them as long as the others.
        let cached = if work.encoded_texts() <= CACHED_TEXTS { others } else { 0 };
        let text = |_| device.tensor(&[1, work.context * TOKENS, width], self.dtype);
        let scheduled = (0..others + cached).map(text).collect();
        let encode = |encoder: &TextEncoder| -> Result<Vec<TextOutput<MetaTensor>>> {
            let config = encoder.config();
            let chunks = vec![vec![0; config.max_position_embeddings]; work.chunks];
            let layer = HiddenLayer { from_end: self.layer.from_end.min(config.num_hidden_layers), ..self.layer };
            let one = |_| encoder.forward(&chunks, None, layer, device, &TokenEmbeddings::default(), &mut |_, _| ());
            (0..texts).map(|text| Ok(one(text)?)).collect()
        };
        let _encoded: Vec<_> = self.text.iter().map(encode).collect::<Result<_>>()?;
        Ok((self.unet.meta_conditioning(device, work.images(), work.context * TOKENS, self.dtype), scheduled))
    }

    /// One step with the sampler's tensors; returns the latents.
    fn denoise(&self, device: &MetaDevice, work: &Work, conditioning: &Conditioning<MetaTensor>) -> Result<MetaTensor> {
        let (h, w) = (work.height / self.downscale, work.width / self.downscale);
        let (n, c) = (work.batch_size, self.unet.config().in_channels);
        let latents = device.tensor(&[n, c, h, w], DType::F32);
        let _state: Vec<_> = (0..SAMPLER_STATE).map(|_| latents.copy()).collect();
        // A recorded step has inputs of its own.
        let _recorded = device.target().is_gpu().then(|| conditioning.copy()).transpose()?;
        let timestep = device.tensor(&[1], DType::F32);
        let constants = Constants {
            conditioning: conditioning.clone(),
            cfg_scale: work.guided.then(|| device.uncounted(&[1], DType::F32)),
            weights: (work.guided && work.parts > 1).then(|| device.tensor(&[work.parts * n, c, h, w], DType::F32)),
        };
        guided_step(self.unet, &latents, &timestep, &constants, self.dtype, None)?;
        Ok(latents)
    }

    /// One image, up to its bytes.
    fn decode(&self, latents: &MetaTensor, tiling: Tiling) -> Result<()> {
        let image = self.decoder.decode(&latents.narrow(0, 0, 1)?, self.decoder_dtype, tiling)?;
        if !image.device().target().is_gpu() {
            picture::count_rgb(&image.copy()?)?;
        }
        Ok(())
    }
}
