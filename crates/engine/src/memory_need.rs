//! The memory that the next images of a loaded model need.

use candle_core::Device;
use kiln_mempool::{HostPool, SystemMemory};
use kiln_ops::device::gpu;

use crate::engine::Engine;

/// The bytes that a model needs for the next images besides what it holds, and the device that has to have them.
#[derive(Debug, Clone)]
pub struct MemoryNeed {
    device: Device,
    bytes: u64,
}

impl MemoryNeed {
    /// The bytes: the peak of the last plan without what weights and pools hold already.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether they are a GPU's.
    pub fn is_of_gpu(&self) -> bool {
        self.device.is_cuda()
    }

    /// The bytes that the device has available now; `None` if the system does not report them. It may be asked on any thread, and
    /// takes milliseconds for a GPU.
    pub fn available(&self) -> Option<u64> {
        match self.device.location() {
            candle_core::DeviceLocation::Cuda { gpu_id } => gpu(gpu_id).ok().map(|gpu| gpu.memory_free as u64),
            _ => SystemMemory::now().map(|memory| memory.available),
        }
    }
}

impl Engine {
    /// The memory that images like the last ones need besides what the engine holds; before the first ones, those of the model's own
    /// size. `None` on devices whose memory is not known.
    pub fn memory_need(&self) -> Option<MemoryNeed> {
        if self.placement.backend.is_some() {
            return None;
        }
        let reserved = match &self.pool {
            Some(pool) => pool.reserved().ok()?,
            None => HostPool::statistics().reserved as u64,
        };
        let manager = &self.memory_manager;
        let held = reserved.saturating_sub(manager.options().held_by_others as u64);
        Some(MemoryNeed { device: self.device.clone(), bytes: (manager.plan().peak() as u64).saturating_sub(held) })
    }
}
