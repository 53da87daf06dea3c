//! Work on another thread while the denoiser runs: texts of the next images are encoded, latents of the last ones are
//! decoded.

use std::time::{Duration, Instant};

use kiln_engine::pipeline::{DecodedImage, Latents, OverlapThread, OverlappedNetworks};
use kiln_engine::{Error, Event, Result};

use super::image_task::ImageTask;

/// Images that may wait: those of the largest batch that is searched for, so that the next one begins at once. Their latents
/// take little memory. The denoiser waits if there are more, since decoding is the slower part then.
const WAITING: usize = super::size_search::MOST;

/// A result of the worker.
pub(crate) enum Done {
    /// Texts were encoded in this time.
    Encoded(Duration),
    /// An image was decoded, or was not.
    Decoded(Box<Decoded>),
}

/// The end of decoding one image.
pub(crate) struct Decoded {
    /// The image with its pixels, or with its latents after an error.
    pub(crate) task: std::result::Result<ImageTask<DecodedImage>, (ImageTask<Latents>, Error)>,
    /// News of it: types that were too narrow.
    pub(crate) events: Vec<Event>,
}

/// Work for the thread.
pub(crate) enum Task {
    /// Encodes up to so many of the announced texts. Those that are not encoded here are encoded when they are needed.
    Encode(usize),
    /// Decodes an image.
    Decode(Box<ImageTask<Latents>>),
}

/// A thread that encodes and decodes while another one denoises.
pub(crate) type OverlapWorker = OverlapThread<(Task, OverlappedNetworks), Done>;

/// Starts the thread.
///
/// # Errors
/// [`kiln_engine::Error::Device`] if the system starts no thread.
pub(crate) fn start() -> Result<OverlapWorker> {
    OverlapThread::start(WAITING, |(task, networks): (Task, OverlappedNetworks)| match task {
        Task::Encode(texts) => Done::Encoded(encode(texts, &networks)),
        Task::Decode(task) => Done::Decoded(Box::new(decode(*task, &networks))),
    })
}

/// Call by call, so that the engine may take its turn between two.
fn encode(mut texts: usize, networks: &OverlappedNetworks) -> Duration {
    let start = Instant::now();
    while texts > 0 {
        match networks.encode_next(texts) {
            Ok(0) => break,
            Ok(encoded) => {
                texts = texts.saturating_sub(encoded);
                std::thread::yield_now();
            }
            Err(error) => {
                tracing::debug!("encoding while steps run: {error}; it is tried again when the text is needed");
                break;
            }
        }
    }
    start.elapsed()
}

fn decode(task: ImageTask<Latents>, networks: &OverlappedNetworks) -> Decoded {
    let (result, events) = networks.decode(&task.content);
    let task = match result {
        Ok(image) => Ok(task.with(image).0),
        Err(error) => Err((task, error)),
    };
    Decoded { task, events }
}
