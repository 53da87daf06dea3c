//! The memory and time of a run in one mode.

use kiln_files::ByteSize;
use kiln_vae::Tiling;
use serde::Serialize;

use crate::execution_target::ExecutionTarget;
use crate::pass::Pass;
use crate::stage::Stage;
use kiln_setup::error::Error;
use kiln_setup::mode::Mode;
use kiln_setup::room::Room;

/// The memory and time of a run in one mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The mode.
    pub mode: Mode,
    /// The batch size.
    pub batch_size: usize,
    /// The stages of the run, in their order.
    pub stages: Vec<StagePlan>,
    /// How images are decoded.
    #[serde(serialize_with = "as_text")]
    pub tiling: Tiling,
    /// How initial images are encoded.
    #[serde(serialize_with = "as_text", skip_serializing_if = "is_whole")]
    pub encode_tiling: Tiling,
    /// Whether the text's keys and values are made once for all steps, which takes memory.
    pub keeps_text_keys: bool,
    /// Whether text encoders stay in memory once texts are encoded; only where all networks do, on a GPU. If they leave, their
    /// weights are read again for the next texts.
    pub keeps_text_encoders: bool,
    /// Bytes of weights that are copied to the device in every step of the sampler.
    pub copied_per_step: usize,
    /// Bytes of weights that are copied in addition, once per batch.
    pub copied_per_batch: usize,
    /// Bytes of those that are read from the disk in every step, because host memory has no room for them.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_per_step: usize,
    /// The copy time of a step.
    pub copy_seconds_per_step: f64,
    /// The time of a step by a simple model; where weights stream to a GPU, that of a simulated ring. At least that of reading the
    /// disk.
    pub seconds_per_step: f64,
    /// The time of a batch by a simple model, used only to compare plans.
    pub seconds_per_batch: f64,
}

/// Peak bytes of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StagePlan {
    /// The stage.
    pub stage: Stage,
    /// The pass that it belongs to.
    #[serde(skip_serializing_if = "Pass::is_first")]
    pub pass: Pass,
    /// Resident weights.
    pub weights: usize,
    /// The ring buffer of streamed weights.
    pub ring: usize,
    /// Tensors of the networks and of the sampler.
    pub activations: usize,
    /// Memory that operators keep: buffers of threads, the workspace of a GPU's libraries.
    pub workspace: usize,
    /// Encoded prompts, cached for the next batch.
    pub conditions: usize,
    /// Fragmentation: free memory in the pool that is too fragmented for the next request.
    pub waiting: usize,
}

fn as_text<S: serde::Serializer>(tiling: &Tiling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(tiling)
}

fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// Whether nothing is tiled, also if nothing is encoded.
fn is_whole(tiling: &Tiling) -> bool {
    *tiling == Tiling::Whole
}

impl StagePlan {
    /// A stage that has nothing.
    fn empty(stage: Stage) -> Self {
        Self { stage, pass: Pass::First, weights: 0, ring: 0, activations: 0, workspace: 0, conditions: 0, waiting: 0 }
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.ring + self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Plan {
    /// The mode in words, with what leaves the memory of a GPU in it.
    pub fn described(&self, on: &ExecutionTarget) -> String {
        let leave = on.has_texts_on_gpu() && self.mode.is_fully_resident() && !self.keeps_text_encoders;
        if leave { format!("{}, text encoders leave", self.mode) } else { self.mode.to_string() }
    }

    /// Logs the plan.
    pub fn log(&self) {
        let Self { mode, tiling, copied_per_step, copy_seconds_per_step, .. } = self;
        let stages: Vec<String> =
            self.stages.iter().map(|stage| format!("{} {}", stage.stage.id(), ByteSize(stage.total()))).collect();
        tracing::info!(
            %mode,
            %tiling,
            peak = %ByteSize(self.peak()),
            stages = stages.join(", "),
            copied_per_step = %ByteSize(*copied_per_step),
            copy_seconds_per_step,
            "plan"
        );
    }

    /// The plan of a stage, where the run has that stage: that of the pass which takes the most.
    pub fn stage(&self, stage: Stage) -> Option<&StagePlan> {
        self.stages.iter().filter(|plan| plan.stage == stage).max_by_key(|plan| plan.total())
    }

    /// The plan of a stage in a pass, or in the other pass if that one does not have it.
    pub fn stage_of(&self, stage: Stage, pass: Pass) -> Option<&StagePlan> {
        self.stages.iter().find(|plan| plan.stage == stage && plan.pass == pass).or(self.stage(stage))
    }

    /// The first of the stages that have the most.
    pub fn largest(&self) -> StagePlan {
        let most = |most: StagePlan, stage: &StagePlan| if stage.total() > most.total() { *stage } else { most };
        self.stages.iter().fold(StagePlan::empty(Stage::Encode), most)
    }

    /// The peak bytes.
    pub fn peak(&self) -> usize {
        self.largest().total()
    }

    /// The error if it does not fit into `room`; `what` are the images in words.
    pub fn refusal(&self, what: String, room: Room) -> Error {
        let StagePlan { stage, weights, ring, activations, workspace, conditions, waiting, .. } = self.largest();
        let parts = [
            ("weights", weights),
            ("ring", ring),
            ("activations", activations),
            ("workspace", workspace),
            ("conditions", conditions),
            ("fragmentation", waiting),
        ];
        let names: Vec<String> = parts
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", ByteSize(bytes)))
            .collect();
        Error::Budget {
            what,
            mode: if self.mode == Mode::LOWVRAM {
                "the smallest mode".into()
            } else {
                format!("the mode {}", self.mode)
            },
            stage: stage.id().into(),
            needed: ByteSize(self.peak()),
            parts: names.join(", "),
            room,
        }
    }

    /// Images per second by the same model as [`Plan::seconds_per_batch`].
    pub fn pictures_per_second(&self) -> f64 {
        self.batch_size as f64 / self.seconds_per_batch.max(f64::MIN_POSITIVE)
    }
}
