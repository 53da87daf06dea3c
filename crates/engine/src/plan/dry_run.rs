//! A dry run of a batch: the networks run with tensors that have no elements, in the order of a run, and what each stage
//! holds besides weights is counted.

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder, TextOutput, TokenEmbeddings};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, ControlHint};
use kiln_vae::Tiling;

use super::{ExecutionTarget, Workload};
use crate::error::Result;
use crate::generated_image;
use crate::host_memory;
use crate::pipeline::decoder::Network;
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::event::Stage;
use crate::pipeline::image_encoder;
use crate::pipeline::step::{Constants, guided_step};
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
    pub(super) denoiser: &'a dyn Denoiser,
    /// The embeddings of control images.
    pub(super) hints: Vec<&'a ControlHint>,
    /// The text encoders and the denoiser of a refiner, where the run has one.
    pub(super) refiner: Option<(&'a [TextEncoder], &'a dyn Denoiser)>,
    pub(super) decoder: &'a Network,
    pub(super) encoder: &'a image_encoder::Network,
    pub(super) dtype: DType,
    pub(super) decoder_dtype: DType,
    /// Pixels of a latent in each direction.
    pub(super) downscale: usize,
}

/// What a batch holds and computes.
pub(super) struct DryRun {
    /// The stages in their order.
    pub(super) stages: Vec<StageRun>,
    /// Floating-point operations of each of the denoiser's segments in a step.
    pub(super) step_flop: Vec<f64>,
    /// The same for the refiner's denoiser.
    pub(super) refiner_flop: Vec<f64>,
}

/// What one stage holds, in every way that there is to run it, the fastest first. A stage that is never tiled has one.
pub(super) struct StageRun {
    pub(super) stage: Stage,
    pub(super) ways: Vec<(Tiling, StageBytes)>,
}

impl StageBytes {
    /// The sum.
    pub(super) fn total(&self) -> usize {
        self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Networks<'_> {
    /// Runs the stages of `work` in their order, and those of the autoencoder in every tiling. Each network runs once: what it
    /// keeps stays for those after it.
    pub(super) fn dry_run(&self, on: ExecutionTarget, work: &Workload) -> Result<DryRun> {
        let target = on.target;
        let device = MetaDevice::with_matrices(target, self.dtype, on.matrices);
        let _kept = device.ledger().hold(target.kept());
        // The caller's pixels and mask in f32 stay in the host's memory, the input that is pasted back as bytes, and a masked
        // image for a network that takes one.
        let planes = if self.denoiser.extra_channels() > 0 { 8 } else { 5 };
        let in_host = work.encodes_image && !target.is_gpu();
        let _input = in_host.then(|| device.tensor(&[1, planes, work.height, work.width], DType::F32));
        let own = self.encode(&device, work, (self.text, self.denoiser))?;
        let refined = self.refiner.map(|networks| self.encode(&device, work, networks)).transpose()?;
        let bytes_of = |(conditioning, scheduled): &(Conditioning<MetaTensor>, Vec<MetaTensor>)| {
            conditioning.bytes() + scheduled.iter().map(MetaTensor::bytes).sum::<usize>()
        };
        let conditions = bytes_of(&own) + refined.as_ref().map_or(0, bytes_of);
        let bytes = || {
            let (peak, workspace) = (device.ledger().peak(), target.kept() + device.kept());
            let waiting = device.ledger().peak_reserved().saturating_sub(peak);
            device.ledger().trim(host_memory::TRIM_ABOVE);
            device.ledger().reset_peak();
            StageBytes { activations: peak.saturating_sub(workspace + conditions), workspace, conditions, waiting }
        };
        let (mut stages, mut step_flop, mut refiner_flop) = (Vec::new(), Vec::new(), Vec::new());
        let size = [work.batch_size, self.denoiser.latent_channels()];
        let latents = [size[0], size[1], work.height / self.downscale, work.width / self.downscale];
        // What denoising leaves for decoding.
        let mut held: Option<MetaTensor> = None;
        let tilings = || work.vae.tilings(work.height, target).into_iter();
        for stage in work.stages() {
            let ways = match stage {
                Stage::EncodeImage => {
                    let of = |tiling| {
                        self.encode_image(&device, work, tiling)?;
                        Ok((tiling, bytes()))
                    };
                    tilings().map(of).collect::<Result<Vec<_>>>()?
                }
                Stage::Denoise => {
                    let _hints = self.embed_controls(&device, work)?;
                    device.take_flop();
                    let latents = device.tensor(&latents, DType::F32);
                    self.denoise(&device, self.denoiser, &latents, work, &own.0)?;
                    step_flop = device.take_flop().by_segment(self.denoiser.segments());
                    held = Some(latents);
                    vec![(Tiling::Whole, bytes())]
                }
                Stage::Refine => {
                    let latents = held.take().unwrap_or_else(|| device.tensor(&latents, DType::F32));
                    if let (Some((_, denoiser)), Some((conditioning, _))) = (self.refiner, &refined) {
                        device.take_flop();
                        self.denoise(&device, denoiser, &latents, work, conditioning)?;
                        refiner_flop = device.take_flop().by_segment(denoiser.segments());
                    }
                    held = Some(latents);
                    vec![(Tiling::Whole, bytes())]
                }
                Stage::Decode => {
                    let latents = held.take().unwrap_or_else(|| device.tensor(&latents, DType::F32));
                    let of = |tiling| {
                        self.decode(&latents, tiling)?;
                        Ok((tiling, bytes()))
                    };
                    tilings().map(of).collect::<Result<Vec<_>>>()?
                }
                Stage::Load | Stage::Encode | Stage::Upscale | Stage::Save => vec![(Tiling::Whole, bytes())],
            };
            stages.push(StageRun { stage, ways });
        }
        Ok(DryRun { stages, step_flop, refiner_flop })
    }

    /// The texts one after another, then their conditions for every image; and what texts of schedules hold besides until
    /// the last step.
    fn encode(
        &self,
        device: &MetaDevice,
        work: &Workload,
        (encoders, denoiser): (&[TextEncoder], &dyn Denoiser),
    ) -> Result<(Conditioning<MetaTensor>, Vec<MetaTensor>)> {
        let texts = work.usual_texts();
        let width: usize = encoders.iter().map(|encoder| encoder.config().hidden_size).sum();
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
        let _encoded: Vec<_> = encoders.iter().map(encode).collect::<Result<_>>()?;
        let size = (work.height / self.downscale, work.width / self.downscale);
        let (images, tokens) = (work.images(), work.context * TOKENS);
        Ok((denoiser.meta_conditioning(device, images, size, tokens, self.dtype), scheduled))
    }

    /// One image, up to what its latents are drawn from.
    fn encode_image(&self, device: &MetaDevice, work: &Workload, tiling: Tiling) -> Result<()> {
        let image = device.tensor(&[1, 3, work.height, work.width], DType::F32);
        let moments = self.encoder.encode(&image, self.decoder_dtype, tiling)?;
        if !device.target().is_gpu() {
            let _on_the_host = moments.copy()?;
        }
        Ok(())
    }

    /// The control images of a batch, one by one, and the embedded ones of all images.
    fn embed_controls(&self, device: &MetaDevice, work: &Workload) -> Result<Vec<MetaTensor>> {
        let embed = |hint: &&ControlHint| -> Result<MetaTensor> {
            let image = device.tensor(&[1, hint.channels(), work.height, work.width], self.dtype);
            let embedded = hint.forward(&image)?;
            let [_, h, w, c] = embedded.size4()?;
            Ok(if work.batch_size > 1 { device.tensor(&[work.batch_size, h, w, c], self.dtype) } else { embedded })
        };
        self.hints.iter().map(embed).collect()
    }

    /// One step between the sampler's tensors.
    fn denoise(
        &self,
        device: &MetaDevice,
        denoiser: &dyn Denoiser,
        latents: &MetaTensor,
        work: &Workload,
        conditioning: &Conditioning<MetaTensor>,
    ) -> Result<()> {
        let [n, c, h, w] = latents.size4()?;
        let _state: Vec<_> = (0..SAMPLER_STATE).map(|_| latents.copy()).collect();
        // A recorded step has inputs of its own.
        let _recorded = device.target().is_gpu().then(|| conditioning.copy()).transpose()?;
        let timestep = device.tensor(&[1], DType::F32);
        let constants = Constants {
            conditioning: conditioning.clone(),
            cfg_scale: work.guided.then(|| device.uncounted(&[1], DType::F32)),
            weights: (work.guided && work.parts > 1).then(|| device.tensor(&[work.parts * n, c, h, w], DType::F32)),
        };
        guided_step(denoiser, latents, &timestep, &constants, self.dtype, None)?;
        Ok(())
    }

    /// One image, up to its bytes.
    fn decode(&self, latents: &MetaTensor, tiling: Tiling) -> Result<()> {
        let image = self.decoder.decode(&latents.narrow(0, 0, 1)?, self.decoder_dtype, tiling)?;
        if !image.device().target().is_gpu() {
            generated_image::count_rgb(&image.copy()?)?;
        }
        Ok(())
    }
}
