//! The turns of a group of images: which denoiser makes which of its evaluations, and under which conditions.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_scheduler::Schedule;

use crate::error::Result;
use crate::pipeline::areas::Areas;
use crate::pipeline::conditioning::Conditions;
use crate::pipeline::guidance::Guidance;

/// Successive evaluations that one denoiser makes.
pub(crate) struct Turn {
    /// The denoiser's number: 0 is the model's own, 1 that of its refiner.
    pub(crate) denoiser: usize,
    /// How many evaluations.
    pub(crate) evaluations: usize,
    /// The schedule of a sampler that begins here, at its start; `None` where the sampler goes on.
    pub(crate) schedule: Option<Arc<Schedule>>,
    /// The texts as this model's encoders have encoded them.
    pub(crate) conditions: Conditions,
    /// Over the evaluations of all turns.
    pub(crate) guidance: Guidance,
}

/// A turn with the places of its parts in the latents.
struct PlacedTurn {
    turn: Turn,
    /// The weights of the conditional rows.
    weights: Option<Tensor>,
    areas: Option<Areas>,
}

/// All turns of a group in their order, and where it is.
pub(crate) struct Turns {
    turns: Vec<PlacedTurn>,
    current: usize,
    /// Evaluations that are done, over all turns.
    done: usize,
}

impl Turns {
    /// The turns of images with latents `(c, h, w)`, of which there is at least one.
    ///
    /// # Errors
    /// [`crate::Error::Candle`] where the device has no memory.
    pub(crate) fn new(turns: Vec<Turn>, latents @ (_, h, w): (usize, usize, usize), device: &Device) -> Result<Self> {
        let placed = |turn: Turn| {
            let weights = turn.conditions.weights(latents, device)?;
            let areas = turn.conditions.areas((h, w), device)?;
            Ok(PlacedTurn { turn, weights, areas })
        };
        Ok(Self { turns: turns.into_iter().map(placed).collect::<Result<_>>()?, current: 0, done: 0 })
    }

    /// The turn of the next evaluation, or the last one.
    pub(crate) fn current(&self) -> &Turn {
        &self.turns[self.current].turn
    }

    /// The same, to take its conditions.
    pub(crate) fn current_mut(&mut self) -> &mut Turn {
        &mut self.turns[self.current].turn
    }

    /// All turns, to change them.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Turn> {
        self.turns.iter_mut().map(|placed| &mut placed.turn)
    }

    /// The weights of the conditional rows, where parts are combined.
    pub(crate) fn weights(&self) -> Option<&Tensor> {
        self.turns[self.current].weights.as_ref()
    }

    /// The rectangles for which parts are computed, if some are.
    pub(crate) fn areas(&self) -> Option<&Areas> {
        self.turns[self.current].areas.as_ref()
    }

    /// Evaluations that are done.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Evaluations of all turns.
    pub(crate) fn evaluations(&self) -> usize {
        self.turns.iter().map(|placed| placed.turn.evaluations).sum()
    }

    /// Evaluations until the denoiser changes or the group is done, and the denoiser after that, if there is one.
    pub(crate) fn until_next(&self) -> (usize, Option<usize>) {
        let end: usize = self.turns.iter().take(self.current + 1).map(|placed| placed.turn.evaluations).sum();
        (end - self.done, self.turns.get(self.current + 1).map(|placed| placed.turn.denoiser))
    }

    /// Counts an evaluation. True if it was the last of its turn and another turn follows, which is the current one then.
    pub(crate) fn advance(&mut self) -> bool {
        self.done += 1;
        let has_ended = self.until_next().0 == 0 && self.current + 1 < self.turns.len();
        self.current += usize::from(has_ended);
        has_ended
    }
}
