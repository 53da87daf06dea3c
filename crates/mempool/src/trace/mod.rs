//! Traces of memory: what was allocated and freed when, and for what.
//!
//! While a [`MemoryRecorder`] lives, the host pool and the cards' hook write every request down, with the
//! [`Category`] of the thread that makes it; [`mark_stage`] puts the names of stages between. Its result is a
//! [`MemoryTrace`], which [`crate::replay()`] plays back under other rules. Nobody pays more than a relaxed load while
//! nothing records.

mod recorder;

use std::cell::Cell;

pub use recorder::{MemoryRecorder, mark_stage};
pub(crate) use recorder::{allocated, freed, held};

/// Whose memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Large blocks of the process's memory.
    Host,
    /// A card's memory.
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

/// What memory is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Weights that stay.
    Weights,
    /// Weights that pass through.
    Ring,
    /// What layers give each other: whatever nobody says something else about.
    #[default]
    Activations,
    /// What one operator needs while it runs.
    Workspace,
    /// What was computed once and is kept.
    Cache,
}

thread_local! {
    static CURRENT: Cell<Category> = const { Cell::new(Category::Activations) };
}

impl Category {
    /// All of them, as they are stacked in a drawing.
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

    /// What this thread allocates for at the moment.
    pub fn current() -> Self {
        CURRENT.try_with(Cell::get).unwrap_or_default()
    }

    /// This thread allocates for this while the result lives.
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
    /// It is a thread's own.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for CategoryScope {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.set(self.before));
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEvent {
    /// When, in nanoseconds since the trace began.
    pub nanos: u64,
    /// What.
    pub what: Happened,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// Memory was got.
    Allocated {
        /// Whose.
        pool: Pool,
        /// A number that no other allocation of the trace has.
        id: u64,
        /// How much was asked for.
        bytes: u64,
        /// For what.
        category: Category,
    },
    /// Memory was given back.
    Freed {
        /// The allocation's number.
        id: u64,
    },
    /// A stage began.
    Stage {
        /// Its name.
        name: String,
    },
}

/// What was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryTrace {
    /// In the order in which it happened. Every freed number was allocated before.
    pub events: Vec<MemoryEvent>,
    /// Events that did not fit into the recorder's memory, all of them after those that are here.
    pub lost: u64,
}

impl MemoryTrace {
    /// The allocations of one pool as sizes and moments, for [`crate::Plan`] and for replays: what lives to the end is
    /// freed there.
    pub fn of(&self, pool: Pool) -> Self {
        let mut ours = std::collections::HashSet::new();
        let keep = |event: &&MemoryEvent| match &event.what {
            Happened::Allocated { pool: of, id, .. } => *of == pool && ours.insert(*id),
            Happened::Freed { id } => ours.contains(id),
            Happened::Stage { .. } => true,
        };
        Self { events: self.events.iter().filter(keep).cloned().collect(), lost: self.lost }
    }
}
