//! The plans of a run in every mode, as front ends show them.

use serde::Serialize;
use serde_json::{Value, json};

use super::{ExecutionTarget, Plan, Planner, Workload, process_bytes};
use crate::error::Result;
use crate::room::Room;

/// The plans of a run, the fastest mode first.
pub struct PlanReport {
    /// The run.
    pub work: Workload,
    /// Where it runs.
    pub on: ExecutionTarget,
    /// The memory that there is; `None` without the device and without a budget.
    pub room: Option<Room>,
    /// The types of matrices that stay as the model's files store them; empty with a type of all matrices.
    pub stored_types: Vec<String>,
    /// All plans.
    pub plans: Vec<Plan>,
    /// The plan that is chosen, or the reason why none fits; `None` without `room`.
    pub chosen: Option<Result<Plan>>,
}

impl PlanReport {
    /// Plans `work` in all modes.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn new(planner: &Planner, work: Workload, on: ExecutionTarget, room: Option<Room>) -> Result<Self> {
        let plans = planner.modes(&work, on, room.map(|room| room.bytes))?;
        let chosen = room.map(|room| planner.choose_within(&work, on, room));
        let stored_types = if on.matrices.is_none() { planner.stored_types() } else { Vec::new() };
        Ok(Self { work, on, room, stored_types, plans, chosen })
    }

    /// A description of the types.
    pub fn types(&self) -> String {
        let types = self.on.types();
        match self.stored_types.as_slice() {
            [] => types,
            stored => format!("{types} with matrices as stored ({})", stored.join(", ")),
        }
    }

    /// The plans as JSON, for the model of this name with the refiner of that name. `peak` of a plan is its largest stage.
    pub fn to_json(&self, model: &str, refiner: Option<&str>) -> Value {
        let Self { work, on, plans, .. } = self;
        let chosen = self.chosen.as_ref().and_then(|chosen| chosen.as_ref().ok());
        json!({
            "model": model, "refiner": refiner, "width": work.width, "height": work.height,
            "batch_size": work.batch_size, "steps": work.steps, "device": on.device(), "dtype": on.dtype.as_str(),
            "weight_type": on.matrices.map(|matrices| matrices.to_string()), "stored_types": self.stored_types,
            "rates": on.rates, "link": on.link, "host": on.host,
            "budget": self.room.map(|room| room.asked()), "process": process_bytes(),
            "plans": plans.iter().map(with_peak).collect::<Vec<_>>(), "chosen": chosen.map(with_peak),
        })
    }
}

/// A plan with its peak memory, which determines the choice.
fn with_peak(plan: &Plan) -> Value {
    #[derive(Serialize)]
    struct WithPeak<'a> {
        #[serde(flatten)]
        plan: &'a Plan,
        peak: usize,
    }
    json!(WithPeak { plan, peak: plan.peak() })
}
