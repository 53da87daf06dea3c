//! The networks of a planned run with their weights, and the bytes that each mode has of them.

use crate::component_spec::{ComponentSpec, Per, Streaming};
use crate::network_weights::{Streamed, Weights};
use crate::residency::StreamBudget;
use crate::stage::Stage;
use kiln_setup::mode::Mode;

/// The networks of a run, in the order in which they are loaded.
pub struct ComponentSet {
    all: Vec<(ComponentSpec, Weights)>,
}

/// Bytes of weights that a batch copies to the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Copies {
    /// For each image that is decoded or encoded.
    pub per_image: usize,
    /// Once.
    pub once: usize,
}

impl ComponentSet {
    /// These networks.
    pub fn new(all: Vec<(ComponentSpec, Weights)>) -> Self {
        Self { all }
    }

    /// The weights of the first denoiser; `None` if the set has none.
    pub fn denoiser(&self) -> Option<&Weights> {
        self.all.iter().find(|(spec, _)| *spec == ComponentSpec::denoiser(0)).map(|(_, weights)| weights)
    }

    /// Bytes of the weights that `which` selects, all resident.
    fn bytes(&self, which: impl Fn(&ComponentSpec) -> bool) -> usize {
        self.all.iter().filter(|(spec, _)| which(spec)).map(|(_, weights)| weights.all()).sum()
    }

    /// The weights of a stage, all resident: those of the largest network if they run one after another.
    fn resident(&self, stage: Stage) -> usize {
        let of_stage = self.all.iter().filter(|(spec, _)| spec.stage == stage);
        of_stage.fold(0, |sum, (spec, weights)| match spec.takes_turns() {
            true => weights.all().max(sum),
            false => weights.all() + sum,
        })
    }

    /// Weights and ring in a stage of a mode that has `room` bytes for both. `keeps_text`: text encoders stay once texts are
    /// encoded.
    pub fn held(&self, stage: Stage, (mode, keeps_text): (Mode, bool), room: usize) -> (usize, usize) {
        match mode {
            Mode::Full => {
                // The encoders of texts may leave, and those of image prompts always do.
                let may_leave = !matches!(stage, Stage::Load | Stage::Encode | Stage::Upscale | Stage::Save);
                let stays = |spec: &ComponentSpec| match spec.per {
                    Per::Text => keeps_text || !may_leave,
                    Per::Input => false,
                    Per::Step | Per::Image | Per::Pass => true,
                };
                let prompts = if stage == Stage::ImagePrompt { self.resident(stage) } else { 0 };
                (self.bytes(stays) + prompts, 0)
            }
            Mode::Medvram => (self.resident(stage), 0),
            Mode::Lowvram { resident } => {
                let Streamed { resident, ring, .. } = self.streamed(stage, resident, room);
                (resident, ring)
            }
        }
    }

    /// How the networks of a stage stream in `room` bytes: a denoiser with `resident` bytes besides its ring. Networks that run one
    /// after another have what the largest of them has.
    pub fn streamed(&self, stage: Stage, resident: usize, room: usize) -> Streamed {
        let least = self.least(stage);
        let room = room.saturating_sub(least.on_device());
        let mut all = Streamed::default();
        for (spec, weights) in self.all.iter().filter(|(spec, _)| spec.stage == stage) {
            let one = match spec.streaming {
                Streaming::Least => continue,
                Streaming::Never => Streamed { resident: weights.all(), ..Streamed::default() },
                Streaming::Divided => {
                    let resident = if spec.per == Per::Step { resident.min(weights.all()) } else { 0 };
                    weights.streamed(StreamBudget { resident, room })
                }
            };
            all = match spec.takes_turns() {
                true if one.on_device() < all.on_device() => all,
                true => one,
                false => all.plus(one),
            };
        }
        all.plus(least)
    }

    /// The networks of a stage that stream next to another one.
    fn least(&self, stage: Stage) -> Streamed {
        let parallel = self.all.iter().filter(|(spec, _)| spec.stage == stage && spec.streaming == Streaming::Least);
        parallel.fold(Streamed::default(), |sum, (_, weights)| sum.plus(weights.streamed(StreamBudget::LEAST)))
    }

    /// The most bytes of the first denoiser that can be resident in `room` bytes: the part that rings do not need.
    pub fn most_resident(&self, room: usize) -> usize {
        let Some(weights) = self.denoiser() else { return 0 };
        let room = room.saturating_sub(self.least(Stage::Denoise).on_device());
        room.saturating_sub(weights.streamed(StreamBudget::LEAST).ring).min(weights.all())
    }

    /// Bytes that a batch copies in a mode besides its steps, if networks without activations have `room` bytes, and denoisers `resident`
    /// bytes resident. `reads_text`: text encoders that left are read again.
    pub fn copies(&self, mode: Mode, reads_text: bool, room: usize, resident: usize) -> Copies {
        match mode {
            Mode::Full => {
                let once = if reads_text { self.bytes(|spec| spec.per == Per::Text) } else { 0 };
                Copies { per_image: 0, once }
            }
            Mode::Medvram => Copies { per_image: 0, once: self.bytes(|spec| spec.per != Per::Input) },
            Mode::Lowvram { .. } => {
                let of_images = self.all.iter().filter(|(spec, _)| spec.per == Per::Image);
                let streamed = |weights: &Weights| weights.streamed(StreamBudget { resident: 0, room }).copied;
                let once = self.bytes(|spec| matches!(spec.per, Per::Text | Per::Pass)) + resident;
                Copies { per_image: of_images.map(|(_, weights)| streamed(weights)).sum(), once }
            }
        }
    }
}
