//! Reads slabs that have no memory between copies, in the order of their copies.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use candle_core::Tensor;

use super::staging::Task;
use crate::stream::{HostSlab, Memory};

/// A copy of a piece of a slab, with the slab if it was read for it.
pub(super) struct Piece {
    pub(super) task: Task,
    pub(super) read: Option<Arc<Tensor>>,
}

impl Piece {
    /// A piece of a slab in memory.
    pub(super) fn of(task: Task) -> Self {
        Self { task, read: None }
    }
}

/// Reads the slabs of `tasks` and sends their pieces on, until `tasks` is closed. A slab stays in memory while pieces of it are to be
/// copied. One that cannot be read is the error of its copies.
pub(super) fn read_ahead(tasks: &Receiver<Task>, pieces: &SyncSender<Piece>) {
    let mut last: Option<(Arc<HostSlab>, Arc<Tensor>)> = None;
    for task in tasks {
        let Memory::Read(bytes, read) = &task.slab.0 else {
            let _ = pieces.send(Piece::of(task)); // a piece that no thread takes is dropped, which is its error
            continue;
        };
        let known = last.take().filter(|(slab, _)| Arc::ptr_eq(slab, &task.slab)).map(|(_, tensor)| tensor);
        let tensor = match known.map_or_else(|| read().map(Arc::new), Ok) {
            Ok(tensor) if tensor.elem_count() * tensor.dtype().size_in_bytes() == *bytes => tensor,
            Ok(_) => {
                let _ = task.copy.set(Err("weights were read with another size than before".into()));
                continue;
            }
            Err(error) => {
                let _ = task.copy.set(Err(error.to_string()));
                continue;
            }
        };
        last = Some((task.slab.clone(), tensor.clone()));
        let _ = pieces.send(Piece { task, read: Some(tensor) });
    }
}
