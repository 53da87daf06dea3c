//! Compressing and saving on other threads, while the next images are made.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use kiln_files::{persist, persist_new, temporary_beside};

use super::image_task::{ImageTask, Unsaved};
use super::journal::{Line, Made};
use super::shared_journal::SharedJournal;
use crate::error::{Error, Result};

/// Threads that save for each engine, at least and at most. Two are enough where the CPU makes the images. Small images of a GPU wait
/// for the disk longer than they take to compress, and several threads wait at the same time.
const THREADS: [usize; 2] = [2, 8];
/// The number of images that may wait for each thread. The engine waits if there are more, so that memory stays bounded.
const WAITING: usize = 2;

/// The end of saving an image.
pub(crate) struct Saved {
    pub(crate) id: usize,
    pub(crate) result: Result<Made>,
}

/// Threads that save. They end when all of their queues are dropped.
pub(crate) struct Savers {
    saved: Receiver<Saved>,
    threads: Vec<JoinHandle<()>>,
}

/// Where engines give their images to the threads, each with a queue of its own.
#[derive(Clone)]
pub(crate) struct SaveQueue(SyncSender<ImageTask<Unsaved>>);

impl SaveQueue {
    /// Has an image saved; waits while too many wait.
    pub(crate) fn give(&self, task: ImageTask<Unsaved>) -> Result<()> {
        let path = task.content.path.clone();
        let ended = |_| Error::write(&path)(std::io::Error::other("the threads that save have ended"));
        self.0.send(task).map_err(ended)
    }
}

impl Savers {
    /// Starts the threads for so many engines, with the queue that they take from. Files are written under temporary names in
    /// the folders where they belong.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Device`] where the system gives no thread.
    pub(crate) fn start(journal: &Arc<SharedJournal>, engines: usize) -> Result<(Self, SaveQueue)> {
        let threads = threads(std::thread::available_parallelism().map_or(1, usize::from), engines);
        let (tasks, queue) = sync_channel(WAITING * threads);
        let (tell, saved) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let start = |i: usize| {
            let (queue, tell, journal) = (queue.clone(), tell.clone(), journal.clone());
            let thread = std::thread::Builder::new().name(format!("save-{i}"));
            thread.spawn(move || work(&queue, &tell, &journal))
        };
        let mut started = Vec::with_capacity(threads);
        for i in 0..threads {
            match start(i) {
                Ok(thread) => started.push(thread),
                Err(error) if i == 0 => return Err(refused(&error).into()),
                Err(error) => {
                    tracing::debug!("the system refuses more threads ({error}); {i} save images");
                    break;
                }
            }
        }
        let threads = started;
        Ok((Self { saved, threads }, SaveQueue(tasks)))
    }

    /// The images that were saved since the last call.
    pub(crate) fn news(&self) -> Vec<Saved> {
        self.saved.try_iter().collect()
    }

    /// Waits for the threads, and gives the rest. The queue of each engine was dropped before.
    pub(crate) fn finish(&mut self) -> Vec<Saved> {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that saves images has failed");
            }
        }
        self.news()
    }
}

/// The error where no thread that saves can be started.
fn refused(error: &std::io::Error) -> kiln_engine::Error {
    kiln_engine::Error::Device(format!(
        "no thread can be started that saves images: {error}; raise the limit of processes (ulimit -u), or pids.max of the \
         control group, or use fewer `threads`"
    ))
}

/// All threads that save, on a machine with so many CPUs: they may take a quarter of them.
fn threads(cpus: usize, engines: usize) -> usize {
    let [least, most] = THREADS;
    engines * (cpus / (4 * engines.max(1))).clamp(least, most)
}

/// Saves the images of `queue` until all of its senders are gone, and reports each of them to `tell`.
fn work(queue: &Mutex<Receiver<ImageTask<Unsaved>>>, tell: &Sender<Saved>, journal: &SharedJournal) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = next else { return };
        let id = task.id;
        let result = save(task, journal).or_else(|error| {
            // Of a folder that is gone this tells more than that a file is not there.
            journal.check_place().and(Err(error))
        });
        if tell.send(Saved { id, result }).is_err() {
            return;
        }
    }
}

/// The file is on the disk and in the journal before it gets its name, in this order: whenever the process ends, a
/// name means a whole file that the journal knows, and what it knows under a temporary name is whole, too.
fn save(task: ImageTask<Unsaved>, journal: &SharedJournal) -> Result<Made> {
    let start = Instant::now();
    let ImageTask { job, origin, mut seconds, content, .. } = task;
    let Unsaved { image, key, path, replace } = content;
    let image = image.generated(&job, &origin, 0)?;
    let bytes = image.png().map_err(|error| Error::write(&path)(std::io::Error::other(error)))?;
    journal.check_place()?; // else the folder would be created again here, without a journal
    if let Some(folder) = path.parent().filter(|folder| journal.path().parent() != Some(*folder)) {
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    let mut file = temporary_beside(&path)?;
    file.write_all(&bytes).and_then(|()| file.as_file().sync_data()).map_err(Error::write(&path))?;
    if !replace && path.symlink_metadata().is_ok() {
        return Err(kiln_files::Error::Exists(path).into());
    }
    seconds.save = start.elapsed().as_secs_f64();
    let made = Made { bytes: bytes.len() as u64, seconds };
    let part = file.path().file_name().and_then(|name| name.to_str()).map(String::from);
    journal.append(Line::Made { made: key, made_file: made, part })?;
    if replace {
        persist(file, &path)?
    } else {
        persist_new(file, &path)?
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_save_take_a_quarter_of_many_cpus() {
        assert_eq!([1, 2, 8, 16, 32, 128].map(|cpus| threads(cpus, 1)), [2, 2, 2, 4, 8, 8]);
        assert_eq!([2, 16, 32, 128].map(|cpus| threads(cpus, 2)), [4, 4, 8, 16]);
    }
}
