//! Where the text encoders run next to a GPU by Vulkan, Metal or DirectX 12.

use super::{ExecutionTarget, Planner, Workload};
use crate::error::Result;
use crate::memory::MemoryOptions;
use crate::mode::Mode;
use crate::room::{DeviceMemory, Room};
use crate::setup::Setup;

/// The inverse of the fraction of a GPU's memory that other programs usually have.
const OTHERS: usize = 8;
/// The rank of the mode that keeps all networks.
const FULL: usize = 3;

impl Planner {
    /// `on` with the place of this model's text encoders: on the GPU, unless they alone made a smaller memory mode necessary there. Then they
    /// run on the CPU, next to which the other networks need not be read again for each image.
    ///
    /// The place decides on the bits of an image. It depends on the model and on the GPU's `memory` or the budget alone: not on the mode,
    /// the size of images, or the memory that is free now.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn place_texts(
        &self,
        on: ExecutionTarget,
        options: &MemoryOptions,
        memory: Option<DeviceMemory>,
    ) -> Result<ExecutionTarget> {
        let options = MemoryOptions { held_by_others: 0, ..options.clone() };
        let usual = memory.map(|memory| memory.total.without(memory.total.bytes / OTHERS));
        let Some(room) = Room::of_budget(&options, on.target).or(usual).filter(|_| on.is_portable) else {
            return Ok(on);
        };
        // Without the networks that jobs add.
        let own = Self::of_configurations(&self.model)?;
        let work = own.work([None; 2], None, 1)?;
        let there = own.rank(&work, on, room)?;
        let is_on_host = there < FULL && there < own.rank(&work, on.with_texts_on_host(true), room)?;
        Ok(on.with_texts_on_host(is_on_host))
    }

    /// The target of `setup` on this machine with the place of the text encoders, and the bytes that a run may use there
    /// ([`ExecutionTarget::of`]).
    ///
    /// # Errors
    /// See [`Self::place_texts`].
    pub fn target(&self, setup: &Setup) -> Result<(ExecutionTarget, Option<Room>)> {
        let (on, memory) = ExecutionTarget::with_memory(setup);
        Ok((self.place_texts(on, &setup.memory, memory)?, on.room(&setup.memory, memory)))
    }

    /// How fast the mode is that fits into `room`: 0 if none does.
    fn rank(&self, work: &Workload, on: ExecutionTarget, room: Room) -> Result<usize> {
        Ok(self.fit(work, on, room.bytes)?.map_or(0, |plan| match plan.mode {
            Mode::Full => FULL,
            Mode::Medvram => 2,
            Mode::Lowvram { .. } => 1,
        }))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use kiln_files::ByteSize;
    use kiln_models::Preset;

    use super::*;
    use crate::memory::ModeChoice;

    const GIB: usize = 1 << 30;

    fn place(preset: Preset, gib: usize, options: &MemoryOptions) -> ExecutionTarget {
        let planner = Planner::of_configurations(&kiln_models::Architecture::preset(preset).unwrap()).unwrap();
        let memory = DeviceMemory::new(0, (gib * GIB) as u64);
        planner.place_texts(ExecutionTarget::portable(2, DType::F16), options, Some(memory)).unwrap()
    }

    #[test]
    fn probe() {
        for preset in Preset::ALL {
            for gib in [4, 6, 8, 10, 12, 16, 24, 32, 48] {
                let on = place(preset, gib, &MemoryOptions::default());
                println!("{preset:?} {gib} {}", on.has_texts_on_gpu());
            }
        }
    }
}
