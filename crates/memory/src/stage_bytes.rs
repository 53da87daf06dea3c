//! Bytes of a stage besides weights.

use kiln_vae::Tiling;

use crate::pass::Pass;
use crate::stage::Stage;

/// Bytes besides weights, in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageBytes {
    /// Tensors of the networks and of the sampler.
    pub activations: usize,
    /// Buffers and workspaces that operators keep.
    pub workspace: usize,
    /// Encoded prompts.
    pub conditions: usize,
    /// Fragmentation in the pool.
    pub waiting: usize,
    /// The text's keys and values, where they are made once for all steps. They are not in the sum.
    pub text_keys: usize,
}

/// Bytes of a stage in every way of running it, the fastest first. A stage that is never tiled has one.
pub type Ways = Vec<(Tiling, StageBytes)>;

/// A stage of a pass.
pub struct StageRun {
    /// The stage.
    pub stage: Stage,
    /// The pass.
    pub pass: Pass,
    /// Its bytes.
    pub ways: Ways,
}

impl StageBytes {
    /// The sum.
    pub fn total(&self) -> usize {
        self.activations + self.workspace + self.conditions + self.waiting
    }
}
