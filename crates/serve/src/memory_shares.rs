//! How much of the memory limit clients may hold between their requests.

use kiln_engine::SystemMemory;

/// The most bytes of finished jobs, and of one client's input images, however much memory there is.
const MOST: u64 = 512 << 20;
/// Each of the two is at most this part of the limit, so that one client that fills both holds a quarter of it.
const PART: u64 = 8;
/// The clients whose input images have room at the same time.
const CLIENTS: usize = 4;

/// Bytes that clients may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryShares {
    /// Finished jobs of all clients, with their requests and their images.
    pub(crate) finished: usize,
    /// Input images of the jobs of one client that are not done.
    pub(crate) inputs_each: usize,
    /// The same of all clients.
    pub(crate) inputs: usize,
}

impl MemoryShares {
    /// The shares of the memory that this process may use: the machine's, or the limit of its control groups.
    pub(crate) fn now() -> Self {
        Self::of(SystemMemory::now().map_or(u64::MAX, |memory| memory.total))
    }

    fn of(limit: u64) -> Self {
        let each = usize::try_from((limit / PART).min(MOST)).unwrap_or(usize::MAX);
        Self { finished: each, inputs_each: each, inputs: CLIENTS.saturating_mul(each) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_holds_at_most_a_quarter_of_the_limit() {
        for mib in [64, 512, 2048, 4096, 1 << 20] {
            let MemoryShares { finished, inputs_each, inputs } = MemoryShares::of(mib << 20);
            assert!((finished + inputs_each) as u64 <= mib << 18, "{mib} MiB");
            assert!(inputs >= inputs_each);
        }
        let MemoryShares { finished, inputs, .. } = MemoryShares::of(u64::MAX);
        assert_eq!((finished, inputs), (512 << 20, 2 << 30));
    }
}
