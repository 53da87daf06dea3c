//! A dry run of a batch: the networks run with tensors that have no elements, in the order of a run, and what each stage
//! holds besides weights is counted.

use candle_core::DType;
use kiln_mempool::Held;
use kiln_network::slots::{CACHED_FEATURE, REFERENCE};
use kiln_network::text::TextStage;
use kiln_network::{Control, ControlTakes, Denoiser, Inputs, StepShape};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_request::OpenUpscaler;
use kiln_upscale::StripRows;
use kiln_vae::Tiling;

use super::prompts::{GroupPrompt, PromptNetworks};
use super::{Enlargement, ExecutionTarget, Pass, ReferenceWork, SecondPassWork, Workload};
use crate::error::Result;
use crate::generated_image;
use crate::host_memory;
use crate::pipeline::decoder::Network;
use crate::pipeline::event::Stage;
use crate::pipeline::image_encoder;
use crate::pipeline::step::{guided_step, with_step_inputs};
use crate::setup::CACHED_TEXTS;
use kiln_memory::stage_bytes::{StageBytes, StageRun, Ways};

/// The maximum number of stored latents of a sampler, including noise: the history of UniPC and LMS.
const SAMPLER_STATE: usize = 8;

/// The networks of a batch, and in which types they run.
pub(super) struct Networks<'a> {
    pub(super) text: &'a dyn TextStage,
    pub(super) denoiser: &'a dyn Denoiser,
    /// The control networks, each with the bytes of its weights that run once an image.
    pub(super) controls: Vec<(&'a dyn Control, usize)>,
    /// IP-Adapters with their image encoders.
    pub(super) prompts: &'a [PromptNetworks],
    /// The text encoders and the denoisers of the models that follow this one in the run.
    pub(super) others: Vec<(&'a dyn TextStage, &'a dyn Denoiser)>,
    pub(super) decoder: &'a Network,
    pub(super) encoder: &'a image_encoder::Network,
    pub(super) dtype: DType,
    pub(super) decoder_dtype: DType,
    /// Pixels of a latent in each direction.
    pub(super) downscale: usize,
}

/// The memory and the operations of a batch.
pub(super) struct DryRun {
    /// The stages in their order.
    pub(super) stages: Vec<StageRun>,
    /// The operations of a step.
    pub(super) flop: PassFlop,
    /// The operations of the second pass; empty if there is none.
    pub(super) second_flop: PassFlop,
}

/// Floating-point operations of each segment of a denoiser in a step.
#[derive(Default)]
pub(super) struct PassFlop {
    /// The operations of the model's denoiser.
    pub(super) step: Vec<f64>,
    /// Operations of the denoisers that follow it.
    pub(super) others: Vec<Vec<f64>>,
}

/// Bytes for each pixel of an input while it is pasted around a result: the result in its place, four images of four channels, and
/// the result of three (`PasteBack::apply`).
const PASTING: usize = 3 + 4 * 4 + 3;

impl Networks<'_> {
    /// Runs the stages of `work` in their order, and those of the autoencoder in every tiling. Each network runs once: what it
    /// keeps stays for those after it.
    pub(super) fn dry_run(&self, on: ExecutionTarget, work: &Workload) -> Result<DryRun> {
        let target = on.target;
        let device = match on.is_portable {
            true => MetaDevice::portable(self.dtype, on.matrices),
            false => MetaDevice::with_matrices(target, self.dtype, on.matrices),
        };
        let _kept = device.ledger().hold(on.kept());
        let mut run = DryRun { stages: Vec::new(), flop: PassFlop::default(), second_flop: PassFlop::default() };
        let tilings = work.vae.tilings(work.max_height(), target);
        // What denoising leaves for decoding, and for the next pass.
        let mut held: Option<MetaTensor> = None;
        for (pass, of_pass, stages) in work.passes() {
            let second = work.second.filter(|_| pass == Pass::Second);
            let (mut ways, flop) = self.pass((&device, on), (&of_pass, second), &tilings, &mut held, &stages)?;
            for (_, ways) in ways.iter_mut().filter(|(stage, _)| on.is_on_host(*stage)) {
                let conditions = |(tiling, bytes): &(Tiling, StageBytes)| {
                    (*tiling, StageBytes { conditions: bytes.conditions, ..StageBytes::default() })
                };
                *ways = ways.iter().map(conditions).collect();
            }
            run.stages.extend(ways.into_iter().map(|(stage, ways)| StageRun { stage, pass, ways }));
            *(if pass == Pass::First { &mut run.flop } else { &mut run.second_flop }) = flop;
        }
        Ok(run)
    }

    /// Runs the stages of one pass on a device. The pass has latents of the one before in `held` and leaves its own there. Returns what each
    /// stage holds, and the operations of a step.
    fn pass(
        &self,
        (device, on): (&MetaDevice, ExecutionTarget),
        (work, second): (&Workload, Option<SecondPassWork>),
        tilings: &[Tiling],
        held: &mut Option<MetaTensor>,
        stages: &[Stage],
    ) -> Result<(Vec<(Stage, Ways)>, PassFlop)> {
        let (target, kept) = (device.target(), on.kept());
        // The caller's pixels and mask in f32 stay in the host's memory, a masked image for a network that takes one, and as bytes
        // the colors and the mask of the input that is pasted back.
        let planes = if self.denoiser.extra_channels().has_mask() { 8 } else { 5 };
        let in_host = work.encodes_image && !target.is_gpu();
        let (width, height) = second.map_or((work.width, work.height), |second| second.enlarged);
        let _input = in_host.then(|| device.tensor(&[1, planes, height, width], DType::F32));
        let larger = work.pasted.saturating_sub(width * height);
        let _pasted = (in_host && larger > 0).then(|| device.tensor(&[1, 4, larger], DType::U8));
        let enlarged = second.filter(|second| second.enlargement != Enlargement::Latents && !target.is_gpu());
        let _enlarged = enlarged.map(|_| device.tensor(&[work.batch_size, 3, height, width], DType::U8));
        // Those of each model.
        let mut conditions: Vec<(Inputs<MetaTensor>, Vec<MetaTensor>)> = Vec::new();
        let bytes = |conditions: &[(Inputs<MetaTensor>, Vec<MetaTensor>)]| {
            let of = |(inputs, scheduled): &(Inputs<MetaTensor>, Vec<MetaTensor>)| {
                inputs.bytes() + scheduled.iter().map(MetaTensor::bytes).sum::<usize>()
            };
            let conditions = conditions.iter().map(of).sum();
            let (peak, workspace) = (device.ledger().peak(), kept + device.kept());
            let waiting = device.ledger().peak_reserved().saturating_sub(peak);
            device.ledger().trim(host_memory::TRIM_ABOVE);
            device.ledger().reset_peak();
            let activations = peak.saturating_sub(workspace + conditions);
            StageBytes { activations, workspace, conditions, waiting, text_keys: 0 }
        };
        // Keys and values of image prompts, for the images of the batch.
        let mut prompts: Vec<GroupPrompt> = Vec::new();
        let (mut flop, mut runs) = (PassFlop::default(), Vec::with_capacity(stages.len()));
        let size = [work.batch_size, self.denoiser.latents().channels];
        let latents = [size[0], size[1], work.height / self.downscale, work.width / self.downscale];
        for &stage in stages {
            let _on_host = on.is_on_host(stage).then(|| device.on_host());
            let ways = match stage {
                Stage::Upscale => match second {
                    Some(second) => {
                        held.get_or_insert_with(|| device.tensor(&latents, DType::F32));
                        let larger = device.tensor(&latents, DType::F32);
                        let ways = self.upscale(device, second, &mut || bytes(&conditions))?;
                        *held = Some(larger);
                        ways
                    }
                    None => Vec::new(),
                },
                Stage::Encode => {
                    conditions.push(self.encode(device, work, (self.text, self.denoiser))?);
                    for &networks in &self.others {
                        conditions.push(self.encode(device, work, networks)?);
                    }
                    vec![(Tiling::Whole, bytes(&conditions))]
                }
                Stage::EncodeImage => {
                    let size = work.largest_input((width, height));
                    let of = |&tiling: &Tiling| {
                        self.encode_image(device, size, tiling)?;
                        Ok((tiling, bytes(&conditions)))
                    };
                    tilings.iter().map(of).collect::<Result<Vec<_>>>()?
                }
                Stage::ImagePrompt => {
                    prompts = self.prompts.iter().map(|net| net.encode(device, work, self)).collect::<Result<_>>()?;
                    vec![(Tiling::Whole, bytes(&conditions))]
                }
                Stage::Denoise => {
                    let prompts = std::mem::take(&mut prompts);
                    let _hints = self.embed_controls(device, work)?;
                    device.take_flop();
                    let latents = device.tensor(&latents, DType::F32);
                    let mut text_keys = 0;
                    if let Some((inputs, _)) = conditions.first() {
                        let mut inputs = inputs.clone();
                        for prompt in &prompts {
                            prompt.rows(work.rows_of_image())?.add_to(&mut inputs);
                        }
                        let shape = self.step_shape(work);
                        self.denoiser.add_meta_controls(&mut inputs, device, shape, self.dtype);
                        self.add_references(&mut inputs, device, work);
                        text_keys = self.denoise(device, self.denoiser, &latents, work, &inputs)?;
                    }
                    flop.step = device.take_flop().by_segment(self.denoiser.segments());
                    *held = Some(latents);
                    let bytes = bytes(&conditions);
                    let activations = bytes.activations.saturating_sub(text_keys);
                    vec![(Tiling::Whole, StageBytes { activations, text_keys, ..bytes })]
                }
                Stage::Refine => {
                    let latents = held.take().unwrap_or_else(|| device.tensor(&latents, DType::F32));
                    for ((_, denoiser), (inputs, _)) in self.others.iter().zip(conditions.iter().skip(1)) {
                        device.take_flop();
                        self.denoise(device, *denoiser, &latents, work, inputs)?;
                        flop.others.push(device.take_flop().by_segment(denoiser.segments()));
                    }
                    *held = Some(latents);
                    vec![(Tiling::Whole, bytes(&conditions))]
                }
                Stage::Decode => {
                    let latents = held.get_or_insert_with(|| device.tensor(&latents, DType::F32));
                    let of = |&tiling: &Tiling| {
                        self.decode(latents, tiling)?;
                        // After the decoder's tensors are freed.
                        let pastes = in_host && work.pasted > 0;
                        let _pasting = pastes.then(|| device.tensor(&[1, PASTING, work.pasted], DType::U8));
                        Ok((tiling, bytes(&conditions)))
                    };
                    tilings.iter().map(of).collect::<Result<Vec<_>>>()?
                }
                Stage::Load | Stage::Save => vec![(Tiling::Whole, bytes(&conditions))],
            };
            runs.push((stage, ways));
        }
        Ok((runs, flop))
    }

    /// One image on its way from the first pass to the second, in all strips of a network. The images themselves, of which
    /// a network may make larger ones than the second pass has, are counted in the host's memory.
    fn upscale(
        &self,
        device: &MetaDevice,
        second: SecondPassWork,
        bytes: &mut dyn FnMut() -> StageBytes,
    ) -> Result<Ways> {
        let (target, (width, height)) = (device.target(), second.enlarged);
        let Enlargement::Network(network) = second.enlargement else {
            return Ok(vec![(Tiling::Whole, bytes())]);
        };
        let open = OpenUpscaler::without_weights(network);
        let passes = open.passes([second.first.0, second.first.1], [width, height]).unwrap_or_default();
        let Some(network) = open.upscaler() else { return Ok(vec![(Tiling::Whole, bytes())]) };
        // The last pass is the largest. Its input is what the one before gave.
        let [w, h] = passes.len().checked_sub(2).and_then(|i| passes.get(i)).copied().unwrap_or(second.first.into());
        let [channels, _] = network.config().channels();
        let (shape, result) = (if channels == 1 { [3, h, w] } else { [1, h, w] }, w * h * network.scale().pow(2));
        let in_host = (!target.is_gpu()).then(|| device.tensor(&[3, w * h + result], DType::U8));
        let mut ways = Vec::new();
        for strips in network.all_strips([h, w], target) {
            let network_bytes = device.ledger().hold(network.footprint(shape, self.dtype, target, strips)?);
            let rows = match strips {
                StripRows::Whole => Tiling::Whole,
                StripRows::Rows(rows) => Tiling::Strips { rows, recompute: false },
            };
            ways.push((rows, bytes()));
            drop(network_bytes);
        }
        drop(in_host);
        Ok(ways)
    }

    /// The texts one after another, then their conditions for every image; and what texts of schedules hold besides until
    /// the last step.
    fn encode(
        &self,
        device: &MetaDevice,
        work: &Workload,
        (stage, denoiser): (&dyn TextStage, &dyn Denoiser),
    ) -> Result<(Inputs<MetaTensor>, Vec<MetaTensor>)> {
        let texts = work.text.usual();
        let (tokens, context) = (work.text.tokens.max(stage.least()), work.text.context.max(stage.least()));
        let others = work.text.encoded() - texts;
        // Those that the cache keeps are there a second time, without the tokens that make them as long as the others.
        let cached = if work.text.encoded() <= CACHED_TEXTS { others } else { 0 };
        // Vectors of whole texts are not counted: they are small.
        let shapes: Vec<Vec<usize>> = stage.shapes(context).into_iter().map(|(_, shape)| shape).collect();
        let rows = || shapes.iter().filter(|shape| shape.len() > 2).map(|shape| device.tensor(shape, self.dtype));
        let scheduled = (0..others + cached).flat_map(|_| rows()).collect();
        let _encoded = stage.dry_run_with_images(device, self.dtype, (tokens, texts), work.references.in_text())?;
        Ok((
            denoiser.meta_inputs(device, StepShape { tokens: context, ..self.step_shape(work) }, self.dtype),
            scheduled,
        ))
    }

    /// The sizes of a step of `work` with the model's own texts.
    fn step_shape(&self, work: &Workload) -> StepShape {
        let (height, width) = (work.height / self.downscale, work.width / self.downscale);
        StepShape { rows: work.images(), height, width, tokens: work.text.context.max(self.text.least()) }
    }

    /// One image, up to what its latents are drawn from.
    fn encode_image(&self, device: &MetaDevice, (width, height): (usize, usize), tiling: Tiling) -> Result<()> {
        let image = device.tensor(&[1, 3, height, width], DType::F32);
        let moments = self.encoder.encode(&image, self.decoder_dtype, tiling)?;
        if !device.target().is_gpu() {
            let _on_the_host = moments.copy()?;
        }
        Ok(())
    }

    /// The control images of a batch, one by one, each network's weights while it runs, and what it makes of all images.
    fn embed_controls(&self, device: &MetaDevice, work: &Workload) -> Result<Vec<MetaTensor>> {
        let (mut all, rows) = (Vec::new(), work.batch_size);
        for (control, weights) in &self.controls {
            let _weights = device.ledger().hold(*weights);
            let image = match control.spec().takes {
                // The pixels are on the host before they are on the device.
                ControlTakes::Pixels { channels } => [1, channels, work.height, work.width],
                ControlTakes::Latents { masked, .. } => {
                    let channels = self.denoiser.latents().channels + usize::from(masked);
                    [1, channels, work.height / self.downscale, work.width / self.downscale]
                }
            };
            for made in control.embed(&device.tensor(&image, self.dtype))? {
                let [_, a, b, c] = made.size4()?;
                all.push(if rows > 1 { device.tensor(&[rows, a, b, c], self.dtype) } else { made });
            }
        }
        Ok(all)
    }

    /// Adds the reference images, for all rows.
    fn add_references(&self, inputs: &mut Inputs<MetaTensor>, device: &MetaDevice, work: &Workload) {
        let (ReferenceWork { count, width, height, .. }, channels) =
            (work.references, self.denoiser.latents().channels);
        let shape = [work.images(), channels, height / self.downscale, width / self.downscale];
        (0..count).for_each(|i| inputs.add(REFERENCE, i, device.tensor(&shape, self.dtype)));
    }

    /// One step between the sampler's tensors. Returns the bytes of the inputs that the denoiser makes once for all steps: the
    /// text's keys and values.
    fn denoise(
        &self,
        device: &MetaDevice,
        denoiser: &dyn Denoiser,
        latents: &MetaTensor,
        work: &Workload,
        inputs: &Inputs<MetaTensor>,
    ) -> Result<usize> {
        let [n, c, h, w] = latents.size4()?;
        let _state: Vec<_> = (0..SAMPLER_STATE).map(|_| latents.copy()).collect();
        let shape = StepShape { rows: inputs.batch(), ..self.step_shape(work) };
        let feature = work.network.cached.and_then(|branch| denoiser.state(CACHED_FEATURE, branch, shape));
        let feature = feature.map(|shape| device.tensor(&shape, self.dtype));
        let before = inputs.bytes();
        let inputs = denoiser.prepare(inputs.clone())?;
        let prepared = inputs.bytes() - before;
        let inputs = work.network.add_block_cache(work, (denoiser, shape), (device, self.dtype), inputs);
        let hooked = |is_shortcut| {
            let hooks = work.network.inputs(work, shape.rows, feature.as_ref(), is_shortcut);
            work.network.add_skipped(work, shape.rows, hooks.add_to(inputs.clone()))
        };
        let whole = hooked(false);
        // A recorded step has inputs of its own. A step with the first-block cache is not recorded.
        let is_recorded = device.target().is_gpu() && !work.network.block_cache;
        let _recorded = is_recorded.then(|| whole.copy()).transpose()?;
        let timestep = device.tensor(&[1], DType::F32);
        let cfg_scale = (work.text.guided && !work.network.repeats()).then(|| device.uncounted(&[1], DType::F32));
        let weights = (work.text.guided && work.text.parts > 1)
            .then(|| device.tensor(&[work.text.parts * n, c, h, w], DType::F32));
        // A step that uses a stored feature is recorded, too, and the second call of self-attention guidance.
        let block_of = |inputs: &Inputs<MetaTensor>| -> Result<Held> {
            let (ledger, before) = (device.ledger(), device.ledger().peak());
            ledger.reset_peak();
            let now = ledger.now();
            guided_step(denoiser, latents, &timestep, inputs, self.dtype, None)?;
            let block = ledger.peak().saturating_sub(now);
            ledger.touch(before.saturating_sub(now));
            Ok(ledger.hold(block))
        };
        let mut blocks = Vec::new();
        if device.target().is_gpu() {
            if feature.is_some() {
                let shortcut = with_step_inputs(hooked(true), cfg_scale.clone(), weights.clone());
                blocks.push(block_of(&shortcut)?);
            }
            if work.network.degraded {
                let inputs = denoiser.meta_inputs(device, StepShape { rows: n, ..shape }, self.dtype);
                blocks.push(block_of(&inputs)?);
            }
        }
        let whole = with_step_inputs(whole, cfg_scale, weights);
        guided_step(denoiser, latents, &timestep, &whole, self.dtype, None)?;
        Ok(if is_recorded { 2 * prepared } else { prepared })
    }

    /// One image, up to its bytes.
    fn decode(&self, latents: &MetaTensor, tiling: Tiling) -> Result<()> {
        let image = self.decoder.decode(&latents.narrow(0, 0, 1)?, self.decoder_dtype, tiling)?;
        generated_image::count_bytes(&image.copy()?);
        Ok(())
    }
}
