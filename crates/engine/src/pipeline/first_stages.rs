//! The stages before denoising: a batch's texts, and its initial images if there are any.

use std::time::Instant;

use candle_core::Tensor;
use kiln_request::{DenoiserSpan, Init, InitImage};

use crate::engine::Engine;
use crate::error::Result;
use crate::host_memory;
use crate::loaded_model::Opening;
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::conditioning::Conditions;
use crate::pipeline::control_images::encode_controls;
use crate::pipeline::decoder::UpcastRetry;
use crate::pipeline::event::{Event, OnEvent, Stage, Timings};
use crate::pipeline::extra_channels::{control_channels, masked_channels};
use crate::pipeline::group::Group;
use crate::pipeline::guidance::Guidance;
use crate::pipeline::network_parts::NetworkParts;
use crate::pipeline::prompt_inputs::encode_prompts;
use crate::pipeline::reference_inputs::encode_references;
use crate::pipeline::second_pass::Enlarged;
use crate::pipeline::start::{Start, is_from_noise};
use crate::pipeline::steering::{input_latents, noise_of};
use crate::pipeline::text_cache::CacheCounts;
use crate::pipeline::text_plan::{BatchTexts, TextPlan};
use crate::pipeline::turns::Turn;

/// The first stages of a batch: its texts, and its initial images if there are any, up to what the denoiser starts with.
/// `enlarged` are the results of the pass before where this is the second one.
pub(crate) fn first_stages(
    engine: &mut Engine,
    batch: &Batch<'_>,
    texts: &BatchTexts,
    enlarged: Option<&Enlarged>,
    on_event: &mut OnEvent<'_>,
) -> Result<Group> {
    on_event(Event::begin(Stage::Encode))?;
    let job = batch.job();
    let conditions = encode(engine, batch, texts.base.clone(), 0, on_event)?;
    let is_guided = conditions.is_guided();
    let refined = match texts.refiner.clone() {
        Some(texts) => Some(encode(engine, batch, texts, 1, on_event)?),
        None => None,
    };
    let f = engine.model.vae_config().downscale();
    let shape = (engine.model.vae_config().latent_channels, job.height / f, job.width / f);
    let mut noise = noise_of(engine.steering.as_ref(), batch, f);
    let control_latents = encode_controls(engine, batch, &mut noise, on_event)?;
    let references = encode_references(engine, batch, &mut noise, on_event)?;
    let control_channels = control_channels(engine, batch, &mut noise, on_event)?;
    if batch.images().any(|(job, _)| job.lacks_pixels()) {
        let (found, expected) = ("an image without pixels".into(), "`Job::with_pixels` before the run".into());
        return Err(kiln_request::Error::Value { name: "init", found, expected }.into());
    }
    let inits = batch.images().map(|(job, _)| &job.init).collect::<Vec<&Init>>();
    let takes_mask = job.extra_channels.has_mask();
    // A network with channels for the masked image sees nothing else of an image that begins with noise.
    let is_seen = !(takes_mask && is_from_noise(&inits, &job.image, engine.model.scheduler_config().is_flow()));
    let images: Vec<&InitImage> = inits.iter().filter_map(|init| init.image()).filter(|_| is_seen).collect();
    let image = match enlarged {
        Some(enlarged) => Some(enlarged.latents(engine, job, &mut noise, on_event)?),
        None => match input_latents(engine.steering.as_ref(), images.len(), shape)? {
            Some(given) => Some(given),
            None => encode_images(engine, &images, &mut noise, on_event)?,
        },
    };
    let drawn = noise.latents(shape)?;
    let masked_channels = masked_channels(engine, (job, &inits), (shape.1, shape.2), &mut noise, on_event)?;
    let begin = Instant::now();
    let schedule = job.schedule(&engine.model)?;
    let (spans, evaluations) = (job.spans(&engine.model)?, job.evaluations(&engine.model)?);
    // Of each model its conditions.
    let turn = |(span, conditions): (&DenoiserSpan, Conditions)| {
        let guidance = Guidance::new(job, &conditions, evaluations);
        let DenoiserSpan { denoiser, evaluations, ref schedule } = *span;
        Turn { denoiser, evaluations, schedule: schedule.clone(), conditions, guidance }
    };
    let turns = spans.iter().zip(std::iter::once(conditions).chain(refined)).map(turn).collect();
    let prompts = encode_prompts(engine, batch, is_guided, on_event)?;
    if !job.controls.is_empty() {
        engine.make_room_for(Stage::Denoise);
    }
    let controls = engine.networks.first.embed_controls(batch, control_latents)?;
    engine.enter_denoiser(0)?;
    engine.timings.encode += begin.elapsed();

    let begin = Instant::now();
    let start = Start::new(
        &inits,
        image,
        (&mut noise, drawn),
        (&schedule, &job.image),
        (shape, f),
        (&engine.device, takes_mask),
    )?;
    let extra = control_channels.or(masked_channels).map(|extra| extra.to_device(&engine.device)).transpose()?;
    let start = start.with_extra(extra);
    let group = Group::of_turns(schedule, start, Box::new(noise), turns, job.prompt_steps())?
        .with_controls(controls)
        .with_prompts(prompts)
        .with_references(references)
        .with_network(NetworkParts::new(job));
    engine.timings.denoise += begin.elapsed();
    Ok(group)
}

/// The stage encode: a batch's texts to its conditions, for the model of the run with this number.
fn encode(
    engine: &mut Engine,
    batch: &Batch<'_>,
    texts: TextPlan,
    number: usize,
    on_event: &mut OnEvent<'_>,
) -> Result<Conditions> {
    let begin = Instant::now();
    engine.networks.model(number).text().fetch(&texts);
    let knows = engine.networks.model(number).text().knows(&texts);
    if !knows {
        engine.make_room_for(Stage::Encode);
    }
    let kept = engine.memory_manager.keeps_text_encoders();
    let keep = engine.memory_manager.keep(Stage::Encode)?;
    let mut proceed = |done, total| on_event(Event::Text { done, total });
    let mut text = engine.networks.model(number).text();
    let conditions = text.conditions(batch.job(), texts, &keep, kept, &mut proceed)?;
    let CacheCounts { encoded, known, shared } = text.counts();
    drop(text);
    if number == 0 {
        let Timings { texts_encoded, texts_known, texts_shared, .. } = &mut engine.timings;
        (*texts_encoded, *texts_known, *texts_shared) = (encoded, known, shared);
    }
    engine.after("encoded");
    engine.timings.encode += begin.elapsed();
    Ok(conditions)
}

/// The stage encode-image: the latents of images, `(n, c, h, w)` in f32 in the host's memory. `None` if there are none.
pub(super) fn encode_images(
    engine: &mut Engine,
    images: &[&InitImage],
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<Option<Tensor>> {
    let one = &mut |i: usize| Ok(images[i].clone());
    (!images.is_empty()).then(|| encode_each(engine, (images.len(), true), one, noise, on_event)).transpose()
}

/// Encodes `n` images, each of which `image` makes when it is encoded. The latents are scaled for the denoiser, and shifted if
/// `shifted` says so.
pub(super) fn encode_each(
    engine: &mut Engine,
    (n, shifted): (usize, bool),
    image: &mut dyn FnMut(usize) -> Result<InitImage>,
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<Tensor> {
    on_event(Event::begin(Stage::EncodeImage))?;
    let begin = Instant::now();
    host_memory::trim(Stage::EncodeImage.id());
    let before = noise.clone();
    let latents = engine.attempt(Stage::EncodeImage, on_event, |engine, _| {
        engine.make_room_for(Stage::EncodeImage);
        let (keep, tiling) =
            (engine.memory_manager.keep(Stage::EncodeImage)?, engine.memory_manager.plan().encode_tiling);
        *noise = before.clone();
        let draw = |like: &Tensor| Ok(noise.sample_of_input(like)?);
        let mut upcast = |UpcastRetry { from, to }| {
            tracing::warn!(
                "an initial image overflowed {} in the VAE; it is encoded in {}",
                from.as_str(),
                to.as_str()
            );
            Ok(())
        };
        let opening = Opening { setup: &engine.setup, placement: &engine.placement, options: &engine.options };
        engine.networks.image_encoder(&engine.model, opening)?.encode(
            (n, shifted),
            image,
            (&keep, tiling),
            draw,
            &mut upcast,
        )
    })?;
    engine.after("encoded images");
    engine.timings.encode += begin.elapsed();
    Ok(latents)
}
