//! The networks of an engine that run on another thread while the denoiser runs, on a GPU in another stream: its text
//! encoders and its decoder.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kiln_ops::ByteRounding;
use kiln_vae::Tiling;

use crate::component::WeightResidency;
use crate::engine::Engine;
use crate::error::Result;
use crate::generated_image::DecodedImage;
use crate::pipeline::decode::Latents;
use crate::pipeline::decoder::{Decoder, UpcastRetry};
use crate::pipeline::event::Event;
use crate::pipeline::text::TextEncoders;

/// The networks that another thread runs while steps run. A lock gives each to one thread at a time.
#[derive(Clone)]
pub struct OverlappedNetworks {
    text: Arc<Mutex<TextEncoders>>,
    decoder: Arc<Mutex<Decoder>>,
    tiling: Tiling,
}

impl OverlappedNetworks {
    /// The networks of an engine; `None` if they run between its steps alone.
    pub(crate) fn of(engine: &Engine) -> Option<Self> {
        let tiling = engine.memory_manager.plan().tiling;
        let may = engine.networks.may_overlap && engine.memory_manager.fits_overlap();
        may.then(|| Self { text: engine.networks.first.text.clone(), decoder: engine.networks.decoder.clone(), tiling })
    }

    /// The image of some latents, once no other thread decodes, with an event for each time that it was decoded again. If memory
    /// is out, nothing smaller is tried.
    pub fn decode(&self, latents: &Latents) -> (Result<DecodedImage>, Vec<Event>) {
        let mut events = Vec::new();
        let image = self.decoded(latents, &mut |retry| {
            events.push(latents.again(retry));
            Ok(())
        });
        (image, events)
    }

    fn decoded(&self, latents: &Latents, upcast: &mut dyn FnMut(UpcastRetry) -> Result<()>) -> Result<DecodedImage> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let how = (self.tiling, ByteRounding::Nearest);
        let image = decoder.decode(&latents.latents, &WeightResidency::Whole, how, upcast)?;
        let visible = latents.visible.clone();
        Ok(DecodedImage { image, latents: latents.latents.clone(), decode: start.elapsed(), visible })
    }

    /// Encodes the next texts that are foreseen, at most `most` and those of one call. Returns their number: 0 if none is left.
    ///
    /// # Errors
    /// Errors of the text encoders. The texts are encoded when they are needed.
    pub fn encode_next(&self, most: usize) -> Result<usize> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).encode_next(most)
    }
}
