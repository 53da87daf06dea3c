//! Running batches of one model, one for each list of LoRAs.

use std::time::{Duration, Instant};

use kiln_engine::{Engine, LoraUse, Result, RunningBatch};

/// LoRAs stay in the weights for so many times the time that it took to bring them there, while others wait.
const STAY: u32 = 4;

/// Running batches, of which the weights fit one at a time.
#[derive(Default)]
pub(super) struct Lanes {
    /// By their numbers, which stay the same.
    lanes: Vec<(usize, Lane)>,
    numbers: usize,
    /// The lane whose LoRAs are in the weights, since when, and until when it stays.
    current: Option<(usize, Instant)>,
}

struct Lane {
    loras: Vec<LoraUse>,
    running: RunningBatch,
}

impl Lanes {
    /// The number of the lane for these LoRAs.
    pub(super) fn of(&mut self, loras: &[LoraUse]) -> usize {
        if let Some((number, _)) = self.lanes.iter().find(|(_, lane)| lane.loras == loras) {
            return *number;
        }
        self.numbers += 1;
        self.lanes.push((self.numbers, Lane { loras: loras.to_vec(), running: RunningBatch::new() }));
        self.numbers
    }

    /// The lane that has to stay for a while, since its LoRAs came at a cost.
    pub(super) fn staying(&self) -> Option<usize> {
        self.current.filter(|(_, until)| Instant::now() < *until).map(|(number, _)| number)
    }

    /// The running batch of a lane.
    pub(super) fn running(&mut self, number: usize) -> Option<&mut RunningBatch> {
        self.lanes.iter_mut().find(|(known, _)| *known == number).map(|(_, lane)| &mut lane.running)
    }

    /// Brings a lane's LoRAs into the weights.
    ///
    /// # Errors
    /// Those of [`Engine::set_loras`].
    pub(super) fn enter(&mut self, number: usize, engine: &mut Engine) -> Result<()> {
        if self.current.is_some_and(|(current, _)| current == number) {
            return Ok(());
        }
        let Some((_, lane)) = self.lanes.iter().find(|(known, _)| *known == number) else { return Ok(()) };
        self.current = None;
        let start = Instant::now();
        engine.take_loras(&lane.loras, &mut |_| Ok(()))?;
        let cost: Duration = start.elapsed();
        self.current = Some((number, Instant::now() + STAY * cost));
        Ok(())
    }

    /// Forgets the lanes without images for which `is_wanted` is false.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(usize) -> bool) {
        self.lanes.retain(|(number, lane)| !lane.running.is_empty() || is_wanted(*number));
    }

    /// Whether no images are in any running batch.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|(_, lane)| lane.running.is_empty())
    }

    /// Forgets everything; the engine goes.
    pub(super) fn clear(&mut self) {
        *self = Self { numbers: self.numbers, ..Self::default() };
    }
}
