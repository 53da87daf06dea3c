//! Compressing and saving on other threads, while the next images are made.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use kiln_files::{persist, persist_new, temporary_beside};

use super::image_task::{ImageTask, Unsaved};
use super::journal::{Journal, Line, Made};
use crate::error::{Error, Result};

/// Threads that save for each engine: compressing an image takes a small part of the time that making it takes.
const THREADS: usize = 2;
/// Images of each engine that may wait for a thread. The engine waits where there are more, so that memory stays bounded.
const WAITING: usize = 4;

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
    /// [`kiln_engine::Error::Files`] where the system gives no thread.
    pub(crate) fn start(journal: &Arc<Mutex<Journal>>, engines: usize) -> Result<(Self, SaveQueue)> {
        let (tasks, queue) = sync_channel(WAITING * engines);
        let (tell, saved) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let thread = |i: usize| {
            let (queue, tell, journal) = (queue.clone(), tell.clone(), journal.clone());
            let thread = std::thread::Builder::new().name(format!("save-{i}"));
            thread.spawn(move || work(&queue, &tell, &journal)).map_err(Error::write(Path::new("a thread")))
        };
        let threads = (0..THREADS * engines).map(thread).collect::<Result<_>>()?;
        Ok((Self { saved, threads }, SaveQueue(tasks)))
    }

    /// What was saved since this was asked before.
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

fn work(queue: &Mutex<Receiver<ImageTask<Unsaved>>>, tell: &Sender<Saved>, journal: &Mutex<Journal>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = next else { return };
        let id = task.id;
        let result = save(task, journal).or_else(|error| {
            // Of a folder that is gone this tells more than that a file is not there.
            journal.lock().unwrap_or_else(PoisonError::into_inner).check_place().and(Err(error))
        });
        if tell.send(Saved { id, result }).is_err() {
            return;
        }
    }
}

/// The file is on the disk and in the journal before it gets its name, in this order: whenever the process ends, a
/// name means a whole file that the journal knows.
fn save(task: ImageTask<Unsaved>, journal: &Mutex<Journal>) -> Result<Made> {
    let start = Instant::now();
    let ImageTask { job, origin, mut seconds, content, .. } = task;
    let Unsaved { image, key, path, replace } = content;
    let image = image.generated(&job, &origin, 0)?;
    let bytes = image.png().map_err(|error| Error::write(&path)(std::io::Error::other(error)))?;
    let journal = || journal.lock().unwrap_or_else(PoisonError::into_inner);
    let of_set = {
        let journal = journal();
        journal.check_place()?; // else the folder would be created again here, without a journal
        journal.path().parent().map(Path::to_path_buf)
    };
    if let Some(folder) = path.parent().filter(|folder| of_set.as_deref() != Some(*folder)) {
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    let mut file = temporary_beside(&path)?;
    file.write_all(&bytes).and_then(|()| file.as_file().sync_data()).map_err(Error::write(&path))?;
    if !replace && path.symlink_metadata().is_ok() {
        return Err(kiln_files::Error::Exists(path).into());
    }
    seconds.save = start.elapsed().as_secs_f64();
    let made = Made { bytes: bytes.len() as u64, seconds };
    let line = Line::Made { made: key, made_file: made };
    journal().append(&[line])?;
    if replace {
        persist(file, &path)?
    } else {
        persist_new(file, &path)?
    }
    Ok(made)
}
