//! Reading weights from the disk before they are needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use kiln_weights::{ParamSource, Patched};

/// A thread that reads weights from the disk. It ends when this is dropped.
pub struct ReadAhead {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Bytes between two reads: each brings a page of this size or a larger one into memory.
const PAGE: usize = 4096;

impl ReadAhead {
    /// Reads the parameters `keys` of `source` in their order. Pages of mapped files leave the process's memory again and stay in
    /// the system's. What cannot be read is left to whoever needs it.
    pub fn start(source: Arc<Patched<Box<dyn ParamSource>>>, keys: Vec<String>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let read = move || {
            for key in keys {
                if asked.load(Ordering::Relaxed) {
                    break;
                }
                if let Ok(Some(data)) = source.inner().data(&key) {
                    let sum = data.bytes.iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                    std::hint::black_box(sum);
                }
                source.inner().release(&key);
            }
        };
        let thread = std::thread::Builder::new().name("read-ahead".into()).spawn(read)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // it reports nothing
        }
    }
}
