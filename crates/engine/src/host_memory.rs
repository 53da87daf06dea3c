//! What a run asks the system for.

use kiln_mempool::{HostPool, PageFaults};

/// Page faults and calls of the host pool since some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Pages that were not in memory; 0 where the system does not tell.
    pub(crate) faults: u64,
    /// Calls of the kernel that the host pool made.
    pub(crate) calls: u64,
}

impl Asked {
    /// Since the process began.
    pub(crate) fn so_far() -> Self {
        let faults = PageFaults::now().map_or(0, |faults| faults.minor + faults.major);
        Self { faults, calls: HostPool::statistics().system_calls }
    }

    /// Since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { faults: self.faults - earlier.faults, calls: self.calls - earlier.calls }
    }
}
