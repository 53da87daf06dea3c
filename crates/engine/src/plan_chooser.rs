//! The choice of a plan: for the networks of an engine, on its device, within its options and its memory.

use candle_core::Device;

use crate::error::{Error, Result};
use crate::memory::{MemoryOptions, ModeChoice};
use crate::mode::Mode;
use crate::plan::{ExecutionTarget, Known, Plan, Planner, Workload};
use crate::room::{DeviceMemory, Room};
use crate::setup::Setup;

/// Chooses plans, of which [`MemoryManager`](crate::memory_manager::MemoryManager) has the current one.
pub(crate) struct PlanChooser {
    pub(crate) planner: Planner,
    pub(crate) on: ExecutionTarget,
    pub(crate) options: MemoryOptions,
    /// The device's memory before this engine or others of the process were loaded, if known.
    pub(crate) memory: Option<DeviceMemory>,
    /// The GPU whose link is found when a plan streams for the first time; `None` afterwards, and for the CPU.
    pub(crate) unknown_link: Option<(Device, Setup)>,
    /// The bytes within which the last plan was made; `None` if nothing limits it.
    pub(crate) limit: Option<usize>,
    /// Plans with their limits, for these networks and options.
    known: Known<Workload, Chosen>,
}

/// A plan, and the bytes within which it was made.
type Chosen = (Plan, Option<usize>);

impl PlanChooser {
    /// A chooser that takes the link of `on` as it is.
    pub(crate) fn new(
        planner: Planner,
        on: ExecutionTarget,
        options: MemoryOptions,
        memory: Option<DeviceMemory>,
    ) -> Self {
        Self { planner, on, options, memory, unknown_link: None, limit: None, known: Known::default() }
    }

    /// Forgets the plans that are known: the networks or the memory are others.
    pub(crate) fn forget(&mut self) {
        self.known.forget();
    }

    /// The plan for `work`, with the link of the GPU if it streams.
    pub(crate) fn choose(&mut self, work: &Workload) -> Result<Plan> {
        let (plan, limit) = self.known_or_chosen(work)?;
        self.limit = limit;
        match self.unknown_link.take_if(|_| plan.mode.streams()) {
            Some((device, setup)) => {
                self.on = self.on.with_device(&device, &setup);
                self.known.forget();
                let (plan, limit) = self.known_or_chosen(work)?;
                self.limit = limit;
                Ok(plan)
            }
            None => Ok(plan),
        }
    }

    /// The result of [`Self::choose_with_link`], which is computed once for a workload.
    fn known_or_chosen(&self, work: &Workload) -> Result<Chosen> {
        self.known.get(*work, || self.choose_with_link(work))
    }

    /// The plan for `work` in the requested mode, or the fastest that fits, and the bytes that limit it. Without a budget it may
    /// need more than the free memory but not more than the total: then the smallest mode is accepted if it fits into that.
    fn choose_with_link(&self, work: &Workload) -> Result<Chosen> {
        let (plan, limit) = match (self.options.mode, self.room()) {
            (ModeChoice::Auto, Some(room)) => match self.planner.fit(work, self.on, room.bytes)? {
                Ok(plan) => return Ok((plan, Some(room.bytes))),
                Err(smallest) => (smallest, Some(room.bytes)),
            },
            (choice, _) => self.asked(choice, work)?,
        };
        match (Room::of_budget(&self.options, self.on.target), self.memory) {
            (Some(budget), _) if plan.peak() > budget.bytes => Err(plan.refusal(work.described(), budget)),
            // A requested mode is replaced by a smaller one that fits when an allocation fails.
            (None, Some(DeviceMemory { total, .. })) if plan.peak() > total.bytes => {
                match self.planner.fit(work, self.on, total.bytes)? {
                    Ok(_) => {
                        let plan = self.planner.plan(plan.mode, work, self.on, Some(total.bytes))?;
                        Ok((plan, Some(total.bytes)))
                    }
                    Err(smallest) => Err(smallest.refusal(work.described(), total)),
                }
            }
            _ => Ok((plan, limit)),
        }
    }

    /// The plan for a requested mode: within the budget, or for a mode that saves memory within what the fastest plan would
    /// take of the free memory.
    fn asked(&self, choice: ModeChoice, work: &Workload) -> Result<Chosen> {
        let (mode, budget) = (Mode::asked(choice), self.budget());
        match (choice, self.free()) {
            (ModeChoice::Medvram | ModeChoice::Lowvram, Some(free)) if budget.is_none() => {
                self.planner.requested(mode, work, self.on, free.bytes)
            }
            _ => Ok((self.planner.plan(mode, work, self.on, budget)?, budget)),
        }
    }

    /// The plan for `mode` after an allocation has failed.
    pub(crate) fn plan_for_mode(&mut self, mode: Mode, work: &Workload) -> Result<Plan> {
        self.limit = self.budget();
        self.planner.plan(mode, work, self.on, self.limit)
    }

    /// The number of images for which `work` has the most images per second by the plan's estimate, at most `most`.
    ///
    /// # Errors
    /// See [`Planner::batch_size`].
    pub(crate) fn batch_size(&self, work: &Workload, most: usize) -> Result<usize> {
        let room = self.room().unwrap_or(Room::given(usize::MAX));
        Ok(self.planner.batch_size(work, self.on, room, most)?.batch_size)
    }

    /// Whether `work` fits into the budget or the free memory.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn has_room_for(&self, work: &Workload) -> Result<bool> {
        let Some(room) = self.room() else { return Ok(true) };
        match self.options.mode {
            ModeChoice::Auto => Ok(self.planner.fit(work, self.on, room.bytes)?.is_ok()),
            choice => Ok(self.asked(choice, work)?.0.peak() <= room.bytes),
        }
    }

    /// Whether weights that are copied to a GPU are in pinned memory, as far as the options allow it.
    pub(crate) fn pins(&self) -> bool {
        self.on.link.is_none_or(|link| link.pinning_pays())
    }

    /// The networks, the types, and the options that plans are made for, in words.
    pub(crate) fn describe_all(&self) -> String {
        let Self { planner, on, options, .. } = self;
        format!("{}, {}, {options:?}, {}", on.device(), on.types(), planner.describe())
    }

    /// The part of the budget for plans.
    pub(crate) fn budget(&self) -> Option<usize> {
        Room::of_budget(&self.options, self.on.target).map(|room| room.bytes)
    }

    /// The bytes available to a run: those of the budget, else the free memory.
    pub(crate) fn room(&self) -> Option<Room> {
        Room::of_budget(&self.options, self.on.target).or(self.free())
    }

    /// The free memory without what other engines hold, if it is known.
    pub(crate) fn free(&self) -> Option<Room> {
        self.memory.map(|memory| memory.free.without(self.options.held_by_others))
    }

    /// Whether all networks stay in memory during `work`, and it fits into the room.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn fits_whole(&self, work: &Workload) -> Result<bool> {
        match self.known_or_chosen(work) {
            Ok((plan, _)) => {
                Ok(plan.mode.is_fully_resident() && self.room().is_none_or(|room| plan.peak() <= room.bytes))
            }
            Err(Error::Budget { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The bytes that inputs of recorded steps may take besides those of the last one.
    pub(crate) fn recorded_inputs(&self) -> usize {
        self.room().map_or(0, |room| room.bytes / 20)
    }
}
