//! A thread that decodes images while steps run: on a GPU in another stream, where memory has room for both.

use std::sync::Arc;

use kiln_engine::pipeline::{Latents, Origin, OverlapThread, OverlappedNetworks, PendingLatents};
use kiln_engine::{Error, Event, GeneratedImage, Job, Result, StopSign};

/// An image on its way to its pixels.
pub(super) struct Undecoded {
    /// The place of its task in the order of arrival.
    pub(super) arrived: u64,
    pub(super) job: Arc<Job>,
    pub(super) latents: PendingLatents,
    /// Ends the decoding when its task must not go on.
    pub(super) sign: StopSign,
}

/// The end of decoding an image.
pub(super) struct Decoded {
    pub(super) arrived: u64,
    /// News of it: types that were too narrow.
    pub(super) events: Vec<Event>,
    /// The image, or why there is none.
    pub(super) image: std::result::Result<Box<GeneratedImage>, NotDecoded>,
}

/// An image that the thread could not decode.
pub(super) struct NotDecoded {
    pub(super) error: Error,
    /// Its latents, if they are there: they are decoded between the steps, with all of the engine's ways to run in less memory.
    pub(super) left: Option<(Latents, Arc<Job>)>,
}

/// The most images that wait: more than the latents of any queue. Steps wait beyond it.
const WAITING: usize = 1024;

/// The thread.
pub(super) type Decoding = OverlapThread<(Undecoded, OverlappedNetworks, Arc<Origin>), Decoded>;

/// Starts the thread.
///
/// # Errors
/// [`Error::Device`] if the system starts no thread.
pub(super) fn start() -> Result<Decoding> {
    OverlapThread::start(WAITING, |(image, networks, origin): (Undecoded, OverlappedNetworks, Arc<Origin>)| {
        let Undecoded { arrived, job, latents, sign } = image;
        let latents = match latents.read() {
            Ok(latents) => latents,
            Err(error) => {
                return Decoded { arrived, events: Vec::new(), image: Err(NotDecoded { error, left: None }) };
            }
        };
        let (pixels, events) = sign.during(|| networks.decode(&latents));
        let made = pixels.and_then(|pixels| pixels.generated(&job, &origin, latents.index));
        let image = made.map(Box::new).map_err(|error| NotDecoded { error, left: Some((latents, job)) });
        Decoded { arrived, events, image }
    })
}
