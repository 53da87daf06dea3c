//! The second pass of hires fix: image-to-image whose images are those of the first pass, enlarged.
//!
//! Latents are interpolated, or pixels are decoded, enlarged and encoded (`sample_hr_pass` of AUTOMATIC1111's
//! `modules/processing.py`, v1.10). All else is what every run has: stages, sampler loop, guidance, memory modes.
//!
//! A job may have a second pass (`request/hires`): a job of its own whose `Init` is the first one's result.
//! `pipeline/second_pass.rs` interpolates latents, or decodes, enlarges and encodes pixels, and then runs the same
//! stages and sampler loop again. A `Workload` has both passes, and its plan the stages of both, so that one memory
//! mode fits both.

use std::ops::ControlFlow;
use std::time::Instant;

use candle_core::{Device, Tensor};
use kiln_media::{Rgb8Image, ValueRange};
use kiln_ops::ByteRounding;
use kiln_request::{HiresUpscaler, InitImage, InitLatents, Job, OpenUpscaler, Rule, SecondPass, UpscalerChoice};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::generated_image::pixels;
use crate::host_memory;
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::decode::{Latents, begin_decoding, decode_with};
use crate::pipeline::denoise::{Denoised, denoise};
use crate::pipeline::event::{Event, OnEvent, Stage};
use crate::pipeline::first_stages::{encode_each, first_stages};
use crate::pipeline::group::Group;
use crate::pipeline::latent_upscale::interpolate;
use crate::pipeline::run::Progress;
use crate::plan::Pass;
use crate::setup::ResolvedDevice;
use kiln_enlarge::{Enlarger, EnlargerEvent, TileRows};

/// The results of a first pass in the size to which they are enlarged.
pub(crate) struct Enlarged {
    content: Content,
    /// Latents that are cut off: left and right, above and below.
    cut: [(usize, usize); 2],
}

enum Content {
    /// `(n, c, h, w)` in f32 in the host's memory.
    Latents(Tensor),
    /// One for each image of the batch.
    Images(Vec<Rgb8Image>),
}

/// The result of the steps of a batch's second pass; `denoised`, the first pass's, if it has no second one.
pub(crate) fn second_pass(
    engine: &mut Engine,
    batch: &Batch<'_>,
    denoised: Denoised,
    progress: Progress,
    on_event: &mut OnEvent<'_>,
) -> Result<Denoised> {
    let (job, Some(second)) = (batch.job(), batch.second()) else { return Ok(denoised) };
    let Some(pass) = job.second_pass() else { return Ok(denoised) };
    let progress = progress.after(job.evaluations(&engine.model)?);
    let has_other_loras = pass.job.loras != job.loras;
    let result = enlarge(engine, batch, pass, &denoised, on_event).and_then(|enlarged| {
        drop(denoised);
        engine.memory_manager.begin_pass(Pass::Second);
        if has_other_loras {
            engine.take_loras(&pass.job.loras, on_event)?;
        }
        let texts = engine.plan_texts(&second)?;
        engine.attempt(Stage::Denoise, on_event, |engine, on_event| {
            let group = first_stages(engine, &second, &texts, Some(&enlarged), on_event)?;
            denoise(engine, &second, group, progress, on_event)
        })
    });
    if has_other_loras {
        let restored = engine.take_loras(&job.loras, on_event);
        return result.and_then(|denoised| restored.map(|()| denoised));
    }
    result
}

/// The group of a batch's second pass, whose LoRAs are those of the first one; the batch has a second pass.
pub(crate) fn second_group(
    engine: &mut Engine,
    batch: &Batch<'_>,
    pass: &SecondPass,
    denoised: Denoised,
    on_event: &mut OnEvent<'_>,
) -> Result<Group> {
    let second = batch.second().ok_or_else(|| Error::value("batch", "of one pass", "a batch with a second pass"))?;
    let enlarged = enlarge(engine, batch, pass, &denoised, on_event)?;
    drop(denoised);
    engine.memory_manager.begin_pass(Pass::Second);
    let texts = engine.plan_texts(&second)?;
    engine.attempt(Stage::Denoise, on_event, |engine, on_event| {
        first_stages(engine, &second, &texts, Some(&enlarged), on_event)
    })
}

impl Enlarged {
    /// The latents that the second pass of `job` begins with, `(n, c, h, w)` in f32 in the host's memory.
    pub(crate) fn latents(
        &self,
        engine: &mut Engine,
        job: &Job,
        noise: &mut BatchNoise,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Tensor> {
        let latents = match &self.content {
            Content::Latents(latents) => latents.clone(),
            Content::Images(images) => {
                let kind = job.image.init_noise.unwrap_or(InitLatents::Sample);
                encode_each(engine, (images.len(), true), &mut |i| init_image(&images[i], kind), noise, on_event)?
            }
        };
        let [(left, right), (above, below)] = self.cut;
        let (_, _, h, w) = latents.dims4()?;
        Ok(latents.narrow(2, above, h - above - below)?.narrow(3, left, w - left - right)?.contiguous()?)
    }
}

/// An image as the encoder takes it.
fn init_image(image: &Rgb8Image, kind: InitLatents) -> Result<InitImage> {
    let planes = image.to_planes(ValueRange::MinusOneToOne);
    Ok(InitImage::new(&Tensor::from_vec(planes, (1, 3, image.height(), image.width()), &Device::Cpu)?, kind)?)
}

/// The stage upscale: the results of the first pass in the size to which the second one enlarges them.
fn enlarge(
    engine: &mut Engine,
    batch: &Batch<'_>,
    pass: &SecondPass,
    denoised: &Denoised,
    on_event: &mut OnEvent<'_>,
) -> Result<Enlarged> {
    let f = engine.model.vae_config().downscale();
    let ((width, height), job) = (pass.enlarged, &pass.job);
    let cut = |enlarged: usize, target: usize| {
        let latents = (enlarged - target) / f;
        (latents / 2, latents.div_ceil(2))
    };
    let cut = [cut(width, job.width), cut(height, job.height)];
    let content = match &pass.upscaler {
        HiresUpscaler::Latents(filter) => {
            on_event(Event::begin(Stage::Upscale))?;
            Content::Latents(interpolate(&denoised.latents, (height / f, width / f), *filter)?)
        }
        HiresUpscaler::Pixels(choice) => {
            let images = decoded(engine, batch, denoised, job.image.rule, on_event)?;
            engine.memory_manager.begin_pass(Pass::Second);
            on_event(Event::begin(Stage::Upscale))?;
            host_memory::trim(Stage::Upscale.id());
            let start = Instant::now();
            let enlarged = engine.attempt(Stage::Upscale, on_event, |engine, on_event| {
                engine.make_room_for(Stage::Upscale);
                enlarge_images(engine, choice, &images, (width, height), on_event)
            })?;
            engine.after("upscaled");
            engine.timings.encode += start.elapsed();
            Content::Images(enlarged)
        }
    };
    Ok(Enlarged { content, cut })
}

/// The images of the first pass, as the rule's program rounds them.
fn decoded(
    engine: &mut Engine,
    batch: &Batch<'_>,
    denoised: &Denoised,
    rule: Rule,
    on_event: &mut OnEvent<'_>,
) -> Result<Vec<Rgb8Image>> {
    begin_decoding(engine);
    let rounding = if rule == Rule::Diffusers { ByteRounding::Nearest } else { ByteRounding::Down };
    let image = |place| pixels(&decode_with(engine, &Latents::of(batch, denoised, place)?, rounding, on_event)?.image);
    (0..batch.len()).map(image).collect()
}

/// The images in the size `width` by `height`.
pub(crate) fn enlarge_images(
    engine: &mut Engine,
    choice: &UpscalerChoice,
    images: &[Rgb8Image],
    (width, height): (usize, usize),
    on_event: &mut OnEvent<'_>,
) -> Result<Vec<Rgb8Image>> {
    let mut enlarger = match (choice, engine.networks.enlarger.take()) {
        (UpscalerChoice::File(path), Some((known, enlarger))) if known == *path => enlarger,
        (choice, _) => {
            let upscaler = OpenUpscaler::open(choice, None)?;
            let weights = upscaler.upscaler().map_or(0, |network| network.segments().bytes(engine.dtype));
            let planned = engine.memory_manager.plan().stage(Stage::Upscale).map_or(0, |stage| stage.weights);
            let (device, threads) = (engine.device.clone(), engine.options.threads.clone());
            let (dtype, backend, matrices, open, pool) = (engine.dtype, None, None, None, None);
            let place = ResolvedDevice { device, backend, dtype, matrices, open, pool, threads };
            let (memory, taken) = (engine.memory_manager.options().clone(), planned.saturating_sub(weights));
            Enlarger::load_sharing(upscaler, place, memory, taken, TileRows::Auto)?
        }
    };
    let mut enlarged = Vec::with_capacity(images.len());
    for (i, image) in images.iter().enumerate() {
        let mut stopped = None;
        let result = enlarger.enlarge(image, width, height, &mut |event| {
            let flow = match event {
                EnlargerEvent::Progress(part) => {
                    on_event(Event::Enlarge { part: (i as f32 + part) / images.len() as f32 })
                }
                EnlargerEvent::FewerRows(rows) => {
                    tracing::warn!("no memory for the upscaler; it goes on with strips of {rows} rows");
                    Ok(())
                }
                EnlargerEvent::Again { from } => {
                    tracing::warn!("the upscaler overflowed {from}; it runs in f32");
                    Ok(())
                }
            };
            match flow {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    stopped = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        enlarged.push(match (result, stopped) {
            (Err(Error::Interrupted), Some(error)) => return Err(error),
            (result, _) => result?,
        });
    }
    if let UpscalerChoice::File(path) = choice {
        engine.networks.enlarger = Some((path.clone(), enlarger));
    }
    Ok(enlarged)
}
