//! Work on another thread while the denoiser runs: texts of the next images are encoded, latents of the last ones are
//! decoded.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kiln_engine::pipeline::{DecodedImage, Latents, OverlappedNetworks};
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

enum Task {
    /// So many of the texts that are foreseen.
    Encode(usize),
    Decode(Box<ImageTask<Latents>>),
}

/// A thread that encodes and decodes while another one denoises.
pub(crate) struct OverlapWorker {
    tasks: SyncSender<(Task, OverlappedNetworks)>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
}

impl OverlapWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Device`] where the system gives no thread.
    pub(crate) fn start() -> Result<Self> {
        let (tasks, queue) = sync_channel(WAITING);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new().name("overlap".into()).spawn(move || work(queue, &tell));
        let thread = thread.map_err(|error| Error::Device(format!("a thread that decodes: {error}")))?;
        Ok(Self { tasks, done, thread })
    }

    /// Has an image decoded; waits while too many wait.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Device`] where the thread has ended.
    pub(crate) fn decode(&self, task: ImageTask<Latents>, networks: OverlappedNetworks) -> Result<()> {
        let ended = |_| Error::Device("the thread that decodes has ended".into());
        self.tasks.send((Task::Decode(Box::new(task)), networks)).map_err(ended)
    }

    /// Encodes up to `texts` of the announced texts, if the thread is idle.
    pub(crate) fn encode(&self, texts: usize, networks: OverlappedNetworks) {
        // Texts that are not encoded here are encoded when they are needed.
        let _ = self.tasks.try_send((Task::Encode(texts), networks));
    }

    /// Returns the results since the last call.
    pub(crate) fn news(&self) -> Vec<Done> {
        self.done.try_iter().collect()
    }

    /// Waits for the thread, and returns the remaining results.
    pub(crate) fn finish(self) -> Vec<Done> {
        let Self { tasks, done, thread } = self;
        drop(tasks); // the thread finds its queue closed
        if thread.join().is_err() {
            tracing::error!("the thread that decodes has failed");
        }
        done.try_iter().collect()
    }
}

fn work(queue: Receiver<(Task, OverlappedNetworks)>, results: &Sender<Done>) {
    for (task, networks) in queue {
        let done = match task {
            Task::Encode(texts) => Done::Encoded(encode(texts, &networks)),
            Task::Decode(task) => Done::Decoded(Box::new(decode(*task, &networks))),
        };
        if results.send(done).is_err() {
            return;
        }
    }
}

/// Text by text, so that the engine may take its turn between two.
fn encode(texts: usize, networks: &OverlappedNetworks) -> Duration {
    let start = Instant::now();
    for _ in 0..texts {
        match networks.encode_next() {
            Ok(true) => std::thread::yield_now(),
            Ok(false) => break,
            Err(error) => {
                tracing::debug!("encoding while steps run: {error}; it is tried again when the text is needed");
                break;
            }
        }
    }
    start.elapsed()
}

fn decode(task: ImageTask<Latents>, networks: &OverlappedNetworks) -> Decoded {
    let mut events = Vec::new();
    let result = networks.decode(&task.content, &mut |news| {
        events.push(task.content.again(news));
        Ok(())
    });
    let task = match result {
        Ok(image) => Ok(task.with(image).0),
        Err(error) => Err((task, error)),
    };
    Decoded { task, events }
}
