//! The stage decode: the latents of one image to its pixels.

use std::time::Instant;

use candle_core::Tensor;
use kiln_media::Gray8Image;
use kiln_ops::ByteRounding;

use crate::engine::Engine;
use crate::error::Result;
use crate::generated_image::DecodedImage;
use crate::host_memory;
use crate::pipeline::batch::Batch;
use crate::pipeline::decoder::UpcastRetry;
use crate::pipeline::denoise::Denoised;
use crate::pipeline::event::{Event, OnEvent, Stage};

/// The latents of one image, whose steps are done.
#[derive(Debug, Clone)]
pub struct Latents {
    /// `(1, c, h, w)` in f32, in the host's memory.
    pub latents: Tensor,
    /// The image's number in its job, from 0.
    pub index: usize,
    /// The image's seed.
    pub seed: u64,
    /// How much of the image is seen instead of its input, in the size of the latents; `None` where the mask alone says
    /// that.
    pub(crate) visible: Option<Gray8Image>,
}

impl Latents {
    /// The latents of the image at `place` of a batch.
    pub(crate) fn of(batch: &Batch<'_>, all: &Denoised, place: usize) -> Result<Self> {
        let (job, index) = batch.image(place);
        let visible = all.visible.as_ref().and_then(|each| each.get(place)).cloned();
        Ok(Self { latents: all.latents.narrow(0, place, 1)?, index, seed: job.seed_of(index), visible })
    }

    /// Says that the image is decoded again.
    pub fn again(&self, UpcastRetry { from, to }: UpcastRetry) -> Event {
        Event::DecodeAgain { index: self.index, seed: self.seed, from: from.as_str(), to: to.as_str() }
    }
}

/// Frees memory before the latents of a batch are decoded.
pub fn begin_decoding(engine: &mut Engine) {
    host_memory::trim(Stage::Decode.id());
    engine.make_room_for(Stage::Decode);
}

/// The stage decode: the latents of one image to its pixels. `on_event` gets the stage, a change of the mode, and a wider type.
///
/// # Errors
/// Errors of the decoder and of `on_event`.
pub fn decode(engine: &mut Engine, latents: &Latents, on_event: &mut OnEvent<'_>) -> Result<DecodedImage> {
    decode_with(engine, latents, ByteRounding::Nearest, on_event)
}

/// [`decode`] with another rounding of the pixels.
pub(crate) fn decode_with(
    engine: &mut Engine,
    latents: &Latents,
    rounding: ByteRounding,
    on_event: &mut OnEvent<'_>,
) -> Result<DecodedImage> {
    on_event(Event::begin(Stage::Decode))?;
    let start = Instant::now();
    let image = engine.attempt(Stage::Decode, on_event, |engine, on_event| {
        let (keep, tiling) = (engine.memory_manager.keep(Stage::Decode)?, engine.memory_manager.plan().tiling);
        let mut decoder = engine.decoder();
        let upcast = &mut |news| on_event(latents.again(news));
        engine.networks.first.recorded.lend(|| decoder.decode(&latents.latents, &keep, (tiling, rounding), upcast))
    })?;
    let decode = start.elapsed();
    engine.timings.decode += decode;
    engine.after("decoded");
    Ok(DecodedImage { image, latents: latents.latents.clone(), decode, visible: latents.visible.clone() })
}
