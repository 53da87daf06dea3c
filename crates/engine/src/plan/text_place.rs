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
    /// The place decides on the bits of an image. It depends on the model and on all of the GPU's `memory` alone: not on options, the size of
    /// images, or the memory that is free now. The budget of `options` takes the place of a memory that is not known.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn place_texts(
        &self,
        on: ExecutionTarget,
        options: &MemoryOptions,
        memory: Option<DeviceMemory>,
    ) -> Result<ExecutionTarget> {
        let usual = |memory: DeviceMemory| {
            // That of all engines which share the GPU.
            let total = memory.total.bytes.saturating_mul(options.shared_by.max(1));
            Room::given(total - total / OTHERS)
        };
        let room = memory.map(usual).or(Room::of_budget(options, on.target));
        let Some(room) = room.filter(|_| on.is_portable) else { return Ok(on) };
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
    use kiln_models::{Architecture, Preset};

    use super::*;
    use crate::memory::ModeChoice;

    const GIB: usize = 1 << 30;

    fn planner(preset: Preset) -> Planner {
        Planner::of_configurations(&Architecture::preset(preset).unwrap()).unwrap()
    }

    fn place(preset: Preset, gib: usize, options: &MemoryOptions) -> ExecutionTarget {
        let memory = DeviceMemory::new(0, (gib * GIB) as u64);
        planner(preset).place_texts(ExecutionTarget::portable(2, DType::F16), options, Some(memory)).unwrap()
    }

    #[test]
    fn texts_are_on_the_gpu_unless_they_cost_a_mode() {
        let plain = MemoryOptions::default();
        for (preset, gib, expected) in [
            (Preset::Sd15, 4, true),
            (Preset::Sdxl, 8, true),
            (Preset::Sd35Medium, 24, true),
            // All but T5 fits.
            (Preset::Sd35Medium, 8, false),
            (Preset::Sd35Medium, 12, false),
            // The denoiser streams anyway.
            (Preset::FluxDev, 16, true),
        ] {
            let on = place(preset, gib, &plain);
            assert_eq!(on.has_texts_on_gpu(), expected, "{preset:?} with {gib} GiB on {}", on.device());
        }
        let planner = planner(Preset::Sd35Medium);
        let work = planner.work([None; 2], None, 1).unwrap();
        let on = place(Preset::Sd35Medium, 12, &plain);
        let there = on.with_texts_on_host(false);
        let peak = |on| planner.plan(Mode::Full, &work, on, None).unwrap().peak();
        assert!(peak(there) - peak(on) > 9 * GIB, "T5 has 4.8e9 parameters");
        assert!(planner.plan(Mode::Full, &work, there, None).unwrap().keeps_text_encoders);
    }

    #[test]
    fn the_place_does_not_depend_on_options_and_on_what_is_free() {
        let planner_of_sd35 = planner(Preset::Sd35Medium);
        let portable = ExecutionTarget::portable(2, DType::F16);
        let there = |options: &MemoryOptions, memory| {
            planner_of_sd35.place_texts(portable, options, memory).unwrap().has_texts_on_gpu()
        };
        for (mode, budget, (total, free, shared_by)) in [
            (ModeChoice::Auto, Some(8), (24, 24, 1)),
            (ModeChoice::Lowvram, None, (24, 2, 2)),
            (ModeChoice::Full, Some(40), (16, 16, 1)),
            (ModeChoice::Medvram, None, (16, 2, 1)),
        ] {
            let budget = budget.map(|gib: usize| ByteSize(gib * GIB));
            let options = MemoryOptions { mode, budget, held_by_others: GIB, shared_by, ..MemoryOptions::default() };
            let memory = DeviceMemory::new((free * GIB) as u64, (total * GIB) as u64).shared_by(shared_by);
            assert_eq!(there(&options, Some(memory)), total == 24, "{options:?}");
        }
        let of_budget = |gib| MemoryOptions { budget: Some(ByteSize(gib * GIB)), ..MemoryOptions::default() };
        assert!(there(&of_budget(24), None) && !there(&of_budget(8), None), "no such GPU is here");
        let on = ExecutionTarget::new(kiln_ops::Target::Gpu, DType::F16);
        let small = Some(DeviceMemory::new(0, 8 << 30));
        let on = planner(Preset::Sd35Medium).place_texts(on, &MemoryOptions::default(), small).unwrap();
        assert!(on.has_texts_on_gpu(), "CUDA");
    }
}
