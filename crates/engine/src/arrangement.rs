//! How a model is arranged in memory: the plan that runs go by, and what becomes of it when memory is out.

use candle_core::Device;
use kiln_mempool::{HostPool, SystemMemory};
use kiln_ops::Target;
use kiln_ops::device::cards;

use crate::error::Result;
use crate::event::Stage;
use crate::memory::{MemoryOptions, ModeChoice};
use crate::mode::Mode;
use crate::part::Keep;
use crate::plan::{Plan, Planner, RunsOn, Work};
use crate::residency::Share;
use crate::setup::PIECE;

/// The part of what is free that a plan leaves to others where nobody gave a budget, on the processor.
const LEFT_FREE: f64 = 0.1;
/// Plans are within a few hundredths of what runs take: one part in so many of a budget stays free.
const MARGIN: usize = 32;
/// Bytes of a card that libraries and kernels take, beside what plans count.
const LIBRARIES: u64 = 384 << 20;

/// Chooses how runs use memory.
pub(crate) struct Arrangement {
    planner: Planner,
    on: RunsOn,
    options: MemoryOptions,
    /// What was free when nothing was loaded yet, where that is known.
    free: Option<usize>,
    /// The plan of the work at hand.
    plan: Plan,
    work: Work,
    /// Whether memory was out: from then on nothing larger is tried.
    met_the_end: bool,
}

impl Arrangement {
    /// The arrangement for one picture of the model's own size.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] where not even the smallest mode fits into a budget.
    pub(crate) fn new(planner: Planner, device: &Device, on: RunsOn, options: MemoryOptions) -> Result<Self> {
        let work = Work { vae: options.vae, ..planner.work([None, None], None, 1)? };
        let plan = planner.plan(Mode::LOWVRAM, &work, on, None)?;
        let mut this = Self { planner, on, options, free: free(device), plan, work, met_the_end: false };
        this.plan = this.choose(&work)?;
        Ok(this)
    }

    /// Plans for `work`. Gives whether the mode is another one than before, so that what is loaded has to go.
    ///
    /// # Errors
    /// As [`Arrangement::new`].
    pub(crate) fn prepare(&mut self, work: Work) -> Result<bool> {
        let work = Work { vae: self.options.vae, ..work };
        if work == self.work {
            return Ok(false);
        }
        let before = self.plan.mode;
        self.plan = if self.met_the_end { self.of_mode(before, &work)? } else { self.choose(&work)? };
        self.work = work;
        Ok(self.plan.mode != before)
    }

    /// The plan that runs go by.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The mode that runs go by.
    pub(crate) fn mode(&self) -> Mode {
        self.plan.mode
    }

    /// Whether texts may be encoded and pictures decoded while the steps of others run: all weights stay, and there is
    /// room for what steps and the larger of the two have at once.
    pub(crate) fn has_room_beside(&self) -> bool {
        let [encode, _, decode] = &self.plan.stages;
        let both = self.plan.peak() + encode.activations.max(decode.activations) + decode.workspace;
        self.mode().keeps_all() && self.budget().or(self.free).is_some_and(|room| both <= room)
    }

    /// How much of the network of `stage` is kept while it runs.
    ///
    /// # Errors
    /// What the U-Net's dry run reports.
    pub(crate) fn keep(&self, stage: Stage) -> Result<Keep> {
        let Mode::Lowvram { resident } = self.plan.mode else { return Ok(Keep::Whole) };
        let [encode, denoise, decode] = &self.plan.stages;
        let (planned, resident, estimate) = match stage {
            Stage::Denoise => (denoise, resident, self.planner.unet_estimate(&self.work, self.on)?),
            Stage::Decode => (decode, 0, self.on.rates.estimate(&[])),
            _ => (encode, 0, self.on.rates.estimate(&[])),
        };
        let room = self.budget().map_or(usize::MAX, |_| planned.weights + planned.ring);
        Ok(Keep::Streamed(Share { resident, room }, estimate))
    }

    /// The next smaller way to run `stage`: with smaller strips where it decodes, else in a smaller mode. `None` where
    /// there is none.
    ///
    /// # Errors
    /// What a dry run reports.
    pub(crate) fn shrink(&mut self, stage: Stage) -> Result<Option<()>> {
        self.met_the_end = true;
        if stage == Stage::Decode {
            let mut ways = self.work.vae.tilings(self.work.height, self.on.target).into_iter();
            ways.find(|tiling| *tiling == self.plan.tiling);
            if let Some(tiling) = ways.next() {
                self.plan.tiling = tiling;
                return Ok(Some(()));
            }
        }
        let Some(mode) = self.mode().smaller(self.planner.unet_bytes(self.on)) else { return Ok(None) };
        let tiling = self.plan.tiling;
        self.plan = self.of_mode(mode, &self.work)?;
        if stage == Stage::Decode {
            self.plan.tiling = tiling; // the smallest was tried
        }
        Ok(Some(()))
    }

    /// The way of running in words.
    pub(crate) fn describe(&self, stage: Stage) -> String {
        match stage {
            Stage::Decode => format!("{}, decoding {}", self.plan.mode, self.plan.tiling),
            _ => self.plan.mode.to_string(),
        }
    }

    /// The plan for `work` in the mode that was asked for, or the fastest that fits.
    fn choose(&self, work: &Work) -> Result<Plan> {
        let budget = self.budget();
        let mode = match (self.options.mode, budget.or(self.free)) {
            (ModeChoice::Auto, Some(room)) => match (self.planner.choose(work, self.on, room), budget) {
                (Ok(plan), _) => return Ok(plan),
                (Err(error), Some(_)) => return Err(error),
                // It may fit all the same: what is free is an estimate.
                (Err(_), None) => Mode::LOWVRAM,
            },
            (choice, _) => Mode::asked(choice),
        };
        let plan = self.of_mode(mode, work)?;
        match budget {
            Some(budget) if plan.peak() > budget => Err(plan.refusal(work, budget)),
            _ => Ok(plan),
        }
    }

    fn of_mode(&self, mode: Mode, work: &Work) -> Result<Plan> {
        self.planner.plan(mode, work, self.on, self.budget())
    }

    /// What plans may use of the budget: the rest is for what they are wrong by, and on a card for what lies between
    /// tensors in the driver's pieces.
    fn budget(&self) -> Option<usize> {
        let pieces = if self.on.target.is_card() { 2 * PIECE } else { 0 };
        self.options.budget.map(|budget| (budget.0 - budget.0 / MARGIN).saturating_sub(pieces))
    }
}

/// Bytes that a run may count on where nobody gave a budget.
fn free(device: &Device) -> Option<usize> {
    let free = match Target::of(device) {
        Target::Processor { .. } => (SystemMemory::now()?.available as f64 * (1.0 - LEFT_FREE)) as u64,
        Target::Card => {
            let candle_core::DeviceLocation::Cuda { gpu_id } = device.location() else { return None };
            let card = cards().ok()?.cards.into_iter().find(|card| card.ordinal == gpu_id)?;
            (card.memory_free as u64).saturating_sub(LIBRARIES)
        }
    };
    usize::try_from(free).ok()
}

/// A ceiling for the processor's memory, for as long as it lives.
pub(crate) struct Ceiling;

impl Ceiling {
    /// Bounds the host pool to `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        HostPool::set_ceiling(Some(bytes));
        Self
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        HostPool::set_ceiling(None);
    }
}
