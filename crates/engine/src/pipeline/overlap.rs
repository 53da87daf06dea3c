//! What of an engine works on another thread while it draws, on a card in another stream: its text encoders and its
//! decoder.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kiln_vae::Tiling;

use crate::engine::Engine;
use crate::error::Result;
use crate::part::Keep;
use crate::pipeline::decoder::{Decoder, Widened};
use crate::pipeline::run::{Drawn, Undecoded};
use crate::pipeline::text::TextEncoders;

/// The networks that may work beside the steps. They take turns with the engine itself.
#[derive(Clone)]
pub(crate) struct NetworksBeside {
    text: Arc<Mutex<TextEncoders>>,
    decoder: Arc<Mutex<Decoder>>,
    tiling: Tiling,
}

impl Engine {
    /// What works while this draws on; `None` where everything waits for its turn.
    pub(crate) fn beside(&self) -> Option<NetworksBeside> {
        let tiling = self.arrangement.plan().tiling;
        let may = self.has_beside && self.arrangement.has_room_beside();
        may.then(|| NetworksBeside { text: self.text.clone(), decoder: self.decoder.clone(), tiling })
    }
}

impl NetworksBeside {
    /// The picture, once nobody else decodes. `widened` is told before it is decoded again.
    ///
    /// # Errors
    /// Those of the decoder: where memory is out, nothing smaller is tried.
    pub(crate) fn decode(&self, picture: &Undecoded, widened: &mut dyn FnMut(Widened) -> Result<()>) -> Result<Drawn> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let image = decoder.decode(&picture.latents, &Keep::Whole, self.tiling, widened)?;
        Ok(Drawn { image, latents: picture.latents.clone(), decode: start.elapsed() })
    }

    /// Encodes the next text that is foreseen; false where there is none.
    ///
    /// # Errors
    /// Those of the text encoders. The text is encoded when it is needed.
    pub(crate) fn encode_next(&self) -> Result<bool> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).encode_next()
    }
}
