//! Memory traces: allocations and frees with their times and categories.
//!
//! While a [`MemoryRecorder`] lives, the host pool and the GPU allocator record every request, with the [`Category`] of
//! its thread, and [`mark_stage`] records the names of stages. The result is a [`MemoryTrace`], which
//! [`crate::replay()`] replays under other policies. While nothing is recorded, a request costs one relaxed load more.

mod recorder;

use std::cell::Cell;

pub use recorder::{MemoryRecorder, mark_stage};
pub(crate) use recorder::{allocated, freed, lock_for_fork, unlock_after_fork};

/// The kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Large blocks of the process's memory.
    Host,
    /// GPU memory.
    Device,
}

impl Pool {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// The name in files.
    pub fn id(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

/// The purpose of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Resident weights.
    Weights,
    /// Streamed weights.
    Ring,
    /// Results of layers, and everything without another category.
    #[default]
    Activations,
    /// The workspace of one operator.
    Workspace,
    /// Cached results.
    Cache,
}

thread_local! {
    static CURRENT: Cell<Category> = const { Cell::new(Category::Activations) };
}

impl Category {
    /// All of them, in the order of a stacked plot.
    pub const ALL: [Self; 5] = [Self::Weights, Self::Ring, Self::Cache, Self::Activations, Self::Workspace];

    /// The name in files.
    pub fn id(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Ring => "ring",
            Self::Activations => "activations",
            Self::Workspace => "workspace",
            Self::Cache => "cache",
        }
    }

    /// The current category of this thread.
    pub fn current() -> Self {
        CURRENT.try_with(Cell::get).unwrap_or_default()
    }

    /// Sets the category of this thread while the result lives.
    ///
    /// ```
    /// use kiln_mempool::Category;
    ///
    /// let scope = Category::Weights.scope();
    /// assert_eq!(Category::current(), Category::Weights);
    /// drop(scope);
    /// assert_eq!(Category::current(), Category::Activations);
    /// ```
    #[must_use = "the category holds while the scope lives"]
    pub fn scope(self) -> CategoryScope {
        CategoryScope { before: CURRENT.replace(self), _thread: std::marker::PhantomData }
    }
}

/// See [`Category::scope`].
#[derive(Debug)]
pub struct CategoryScope {
    before: Category,
    /// It belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for CategoryScope {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.set(self.before));
    }
}

/// An event of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEvent {
    /// The time in nanoseconds since the trace began.
    pub nanos: u64,
    /// The kind of the event.
    pub what: EventKind,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// An allocation.
    Allocated {
        /// The kind of memory.
        pool: Pool,
        /// The number of the allocation, unique in the trace.
        id: u64,
        /// The requested size.
        bytes: u64,
        /// Its purpose.
        category: Category,
    },
    /// A free.
    Freed {
        /// The number of the allocation.
        id: u64,
    },
    /// The start of a stage.
    Stage {
        /// Its name.
        name: String,
    },
}

/// A recorded trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryTrace {
    /// The events in order. Every freed number was allocated before.
    pub events: Vec<MemoryEvent>,
    /// The number of events that did not fit into the recorder's memory, all of them after the recorded ones.
    pub lost: u64,
}

impl MemoryTrace {
    /// The events of one pool, for [`crate::Plan`] and for replays. Allocations that are not freed live to the end.
    pub fn of(&self, pool: Pool) -> Self {
        let mut ours = std::collections::HashSet::new();
        let keep = |event: &&MemoryEvent| match &event.what {
            EventKind::Allocated { pool: of, id, .. } => *of == pool && ours.insert(*id),
            EventKind::Freed { id } => ours.contains(id),
            EventKind::Stage { .. } => true,
        };
        Self { events: self.events.iter().filter(keep).cloned().collect(), lost: self.lost }
    }
}
