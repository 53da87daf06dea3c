//! The memory of a run: one row for each network, the bytes of weights that each mode has in each stage, the plan that follows, and
//! the weights in memory.
//!
//! This crate knows no request and no sampler. What a stage holds besides weights is counted by whoever plans a run.
#![forbid(unsafe_code)]

pub mod batch_size;
pub mod component;
pub mod component_set;
pub mod component_spec;
pub mod execution_target;
pub mod measures;
pub mod network_weights;
pub mod pass;
pub mod plan;
pub mod read_ahead;
pub mod residency;
pub mod stage;
pub mod stage_bytes;
pub mod time;

pub use batch_size::BatchSize;
pub use execution_target::ExecutionTarget;
pub use pass::Pass;
pub use plan::{Plan, StagePlan};
pub use stage::Stage;
pub use time::Rates;
