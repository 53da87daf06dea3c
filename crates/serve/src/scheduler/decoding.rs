//! A thread that decodes images while steps run: on a GPU in another stream, where memory has room for both.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kiln_engine::pipeline::{Latents, Origin, OverlappedNetworks};
use kiln_engine::{Error, Event, GeneratedImage, Job, Result, StopSign};

/// An image on its way to its pixels.
pub(super) struct Undecoded {
    /// The place of its task in the order of arrival.
    pub(super) arrived: u64,
    pub(super) job: Arc<Job>,
    pub(super) latents: Latents,
    /// Ends the decoding when its task must not go on.
    pub(super) sign: StopSign,
}

/// The end of decoding an image.
pub(super) struct Decoded {
    pub(super) arrived: u64,
    /// News of it: types that were too narrow.
    pub(super) events: Vec<Event>,
    /// The image; or what has to be decoded between the steps, with all of the engine's ways to run in less memory.
    pub(super) image: std::result::Result<Box<GeneratedImage>, (Undecoded, Error)>,
}

/// The input of the thread.
type Work = (Undecoded, OverlappedNetworks, Arc<Origin>);

/// The thread.
pub(super) struct Decoding {
    work: Sender<Work>,
    done: Receiver<Decoded>,
    /// It ends when its work is closed.
    _thread: JoinHandle<()>,
}

impl Decoding {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] where the system gives no thread.
    pub(super) fn start() -> Result<Self> {
        let (work, queue) = channel::<Work>();
        let (tell, done) = channel();
        let run = move || {
            for (image, networks, origin) in queue {
                if tell.send(decode(image, &networks, &origin)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("decode".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Device(format!("a thread that decodes: {error}")))?;
        Ok(Self { work, done, _thread: thread })
    }

    /// Has an image decoded.
    ///
    /// # Errors
    /// [`Error::Device`] where the thread has ended.
    pub(super) fn decode(&self, image: Undecoded, networks: OverlappedNetworks, origin: Arc<Origin>) -> Result<()> {
        let ended = |_| Error::Device("the thread that decodes has ended".into());
        self.work.send((image, networks, origin)).map_err(ended)
    }

    /// The images that are done; waits for the first one at most for this time.
    pub(super) fn done(&self, most: Duration) -> Vec<Decoded> {
        let first = if most.is_zero() { None } else { self.done.recv_timeout(most).ok() };
        first.into_iter().chain(self.done.try_iter()).collect()
    }
}

fn decode(image: Undecoded, networks: &OverlappedNetworks, origin: &Origin) -> Decoded {
    let (arrived, mut events) = (image.arrived, Vec::new());
    let mut on_event = |news| {
        events.push(image.latents.again(news));
        Ok(())
    };
    let pixels = image.sign.during(|| networks.decode(&image.latents, &mut on_event));
    let made = pixels.and_then(|pixels| pixels.generated(&image.job, origin, image.latents.index));
    Decoded { arrived, events, image: made.map(Box::new).map_err(|error| (image, error)) }
}
