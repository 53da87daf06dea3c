//! The memory that runs are planned for.

use std::fmt;

use candle_core::{Device, DeviceLocation};
use kiln_files::ByteSize;
use kiln_mempool::SystemMemory;
use kiln_ops::Target;
use kiln_ops::device::{Gpu, gpus};

use crate::memory::MemoryOptions;
use crate::setup::PIECE;

/// The part of the free memory that a plan leaves to other programs on the CPU.
const LEFT_FREE: f64 = 0.1;
/// The least that it leaves on the CPU, in bytes: code, stacks and small allocations of this process are in no plan.
const LEAST_LEFT_FREE: u64 = 32 << 20;
/// Bytes of a GPU that libraries and kernels take, which no plan counts.
const LIBRARIES: u64 = 384 << 20;
/// Plans are within a few hundredths of what runs take: one part in so many of a budget stays free.
const MARGIN: usize = 32;

/// Bytes that a run may use, and where the number is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The bytes.
    pub bytes: usize,
    source: Source,
}

/// Where a number of bytes is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The caller.
    Given,
    /// A budget of so many bytes, less what stays free.
    Budget(ByteSize),
    /// What is free on the device now.
    Free,
    /// All memory of the device, or the limit of the control group.
    Total,
}

impl Room {
    /// So many bytes.
    pub fn given(bytes: usize) -> Self {
        Self { bytes, source: Source::Given }
    }

    /// The budget of `options`, where there is one. What plans are wrong by stays free, and on a GPU what lies between
    /// tensors in the driver's pieces.
    pub(crate) fn of_budget(options: &MemoryOptions, target: Target) -> Option<Self> {
        let pieces = if target.is_gpu() { 2 * PIECE } else { 0 };
        let usable = |bytes: usize| (bytes - bytes / MARGIN).saturating_sub(pieces);
        options.budget.map(|budget| Self { bytes: usable(budget.0), source: Source::Budget(budget) })
    }

    /// The bytes before anything was kept free of them.
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
            Source::Total => write!(f, "there are {bytes} in all"),
        }
    }
}

/// The memory of a device, of which nothing is used by the run yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    /// What a run may count on: an estimate, since other programs come and go.
    pub(crate) free: Room,
    /// What no run can have more of.
    pub(crate) total: Room,
}

impl DeviceMemory {
    /// Of a device that is open; `None` where the system does not report it.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        match device.location() {
            DeviceLocation::Cuda { gpu_id } => {
                let card = gpus().ok()?.gpus.into_iter().find(|card| card.ordinal == gpu_id)?;
                Some(Self::of_card(&card))
            }
            _ => Self::of_processor(),
        }
    }

    /// Of the CPU: in a container what that may use.
    pub(crate) fn of_processor() -> Option<Self> {
        SystemMemory::now().map(Self::of_system)
    }

    fn of_system(memory: SystemMemory) -> Self {
        let left = ((memory.available as f64 * LEFT_FREE) as u64).max(LEAST_LEFT_FREE);
        Self::new(memory.available.saturating_sub(left), memory.total)
    }

    /// Of a GPU.
    pub(crate) fn of_card(card: &Gpu) -> Self {
        Self::new((card.memory_free as u64).saturating_sub(LIBRARIES), card.memory_total as u64)
    }

    /// `free` and `total` in bytes.
    pub(crate) fn new(free: u64, total: u64) -> Self {
        let room = |bytes, source| Room { bytes: usize::try_from(bytes).unwrap_or(usize::MAX), source };
        Self { free: room(free, Source::Free), total: room(total, Source::Total) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_is_free_is_left() {
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
    }
}
