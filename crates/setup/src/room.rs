//! The available memory for plans.

use std::fmt;

use candle_core::{Device, DeviceLocation};
use kiln_files::ByteSize;
use kiln_mempool::SystemMemory;
use kiln_ops::Target;
use kiln_ops::device::{Gpu, gpu};
use kiln_ops::portable::BackendMemory;

use crate::memory::MemoryOptions;
use crate::setup::POOL_GRANULARITY;

/// The fraction of the free CPU memory that a plan leaves to other programs.
const LEFT_FREE: f64 = 0.1;
/// The minimum that it leaves on the CPU in bytes, because no plan contains code, stacks and small allocations.
const LEAST_LEFT_FREE: u64 = 32 << 20;
/// GPU bytes of libraries and kernels, which no plan counts.
pub const LIBRARIES: u64 = 384 << 20;
/// Bytes of kernels and copies of a GPU by Vulkan, Metal or DirectX 12, which no plan counts.
const KERNELS: u64 = 128 << 20;
/// The inverse of the fraction of a budget that stays free, because plans differ from runs by a few percent.
const MARGIN: usize = 32;

/// The bytes that a run may use, and their source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The bytes.
    pub bytes: usize,
    source: Source,
}

/// The source of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The caller.
    Given,
    /// A budget with this number of bytes, less a margin.
    Budget(ByteSize),
    /// The free memory of the device now.
    Free,
    /// The total memory of the device, or the limit of the control group.
    Total,
}

impl Room {
    /// A given number of bytes.
    pub fn given(bytes: usize) -> Self {
        Self { bytes, source: Source::Given }
    }

    /// The budget of `options` without what other engines hold, if there is one. A margin for errors of the plan stays free, and on
    /// a GPU also for fragmentation in the driver's granules.
    pub fn of_budget(options: &MemoryOptions, target: Target) -> Option<Self> {
        let pieces = if target.is_gpu() { 2 * POOL_GRANULARITY } else { 0 };
        let held = options.held_by_others + pieces;
        let usable = |bytes: usize| (bytes - bytes / MARGIN).saturating_sub(held);
        let part = |budget: ByteSize| ByteSize(budget.0 / options.shared_by.max(1));
        options.budget.map(part).map(|budget| Self { bytes: usable(budget.0), source: Source::Budget(budget) })
    }

    /// It without `bytes` that others have.
    #[must_use]
    pub fn without(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_sub(bytes), ..self }
    }

    /// The bytes before margins.
    pub fn asked(&self) -> usize {
        match self.source {
            Source::Budget(budget) => budget.0,
            _ => self.bytes,
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = ByteSize(self.bytes);
        match self.source {
            Source::Given => write!(f, "{bytes} are allowed"),
            Source::Budget(budget) => write!(f, "{bytes} of the budget of {budget} can be used"),
            Source::Free => write!(f, "{bytes} of the free memory can be used"),
            Source::Total => write!(f, "{bytes} exist in total"),
        }
    }
}

/// The memory of a device that the run does not use yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The bytes that a run may expect: an estimate, because other programs start and end.
    pub free: Room,
    /// The upper limit of any run.
    pub total: Room,
}

impl DeviceMemory {
    /// The memory of an open device; `None` if the system does not report it.
    pub fn of(device: &Device) -> Option<Self> {
        match device.location() {
            DeviceLocation::Cuda { gpu_id } => gpu(gpu_id).ok().as_ref().map(Self::of_card),
            _ => Self::of_processor(),
        }
    }

    /// The CPU's memory: in a container, its limit.
    pub fn of_processor() -> Option<Self> {
        SystemMemory::now().map(Self::of_system)
    }

    fn of_system(memory: SystemMemory) -> Self {
        let left = ((memory.available as f64 * LEFT_FREE) as u64).max(LEAST_LEFT_FREE);
        Self::new(memory.available.saturating_sub(left), memory.total)
    }

    /// A GPU's memory.
    pub fn of_card(gpu: &Gpu) -> Self {
        Self::new((gpu.memory_free as u64).saturating_sub(LIBRARIES), gpu.memory_total as u64)
    }

    /// The memory of a GPU by Vulkan, Metal or DirectX 12. If it is a part of the host's, no more of it is free than there.
    pub fn of_backend(memory: BackendMemory) -> Self {
        let own = Self::new(memory.free.saturating_sub(KERNELS), memory.total);
        match Self::of_processor().filter(|_| memory.is_shared) {
            Some(host) if host.free.bytes < own.free.bytes => Self { free: host.free, ..own },
            _ => own,
        }
    }

    /// The part of each of `n` engines on the device.
    pub fn shared_by(self, n: usize) -> Self {
        let part = |room: Room| Room { bytes: room.bytes / n.max(1), ..room };
        Self { free: part(self.free), total: part(self.total) }
    }

    /// With `bytes` more that are free, though not in all.
    #[must_use]
    pub fn with_free(self, bytes: usize) -> Self {
        let free = self.free.bytes.saturating_add(bytes).min(self.total.bytes);
        Self { free: Room { bytes: free, ..self.free }, ..self }
    }

    /// From `free` and `total` in bytes.
    pub fn new(free: u64, total: u64) -> Self {
        let room = |bytes, source| Room { bytes: usize::try_from(bytes).unwrap_or(usize::MAX), source };
        Self { free: room(free, Source::Free), total: room(total, Source::Total) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_free_memory_is_left() {
        let of = |available: u64| {
            let memory = SystemMemory { total: 64 << 30, available, physical: 64 << 30 };
            DeviceMemory::of_system(memory).free.bytes
        };
        assert_eq!(of(10 << 30), 9 << 30);
        assert_eq!(of(90 << 20), 58 << 20, "the process itself needs some");
        assert_eq!(of(20 << 20), 0);
    }

    #[test]
    fn a_budget_keeps_a_margin() {
        let options = MemoryOptions { budget: Some(ByteSize(320 << 20)), ..MemoryOptions::default() };
        let on = |target| Room::of_budget(&options, target).unwrap();
        assert_eq!(on(Target::Cpu { threads: 2 }).bytes, 310 << 20);
        assert_eq!(on(Target::Gpu).bytes, 246 << 20);
        assert_eq!(on(Target::Gpu).asked(), 320 << 20);
        assert_eq!(on(Target::Gpu).to_string(), "246.0 MiB of the budget of 320.0 MiB can be used");
        let shared = MemoryOptions { held_by_others: 46 << 20, ..options };
        assert_eq!(Room::of_budget(&shared, Target::Gpu).unwrap().bytes, 200 << 20);
    }
}
