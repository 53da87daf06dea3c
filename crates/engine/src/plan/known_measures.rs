//! The measures of the last workloads. A server plans for every job that joins or leaves, again and again for the same workloads, and the
//! dry run of all networks takes longer than a step of a small model on a GPU.

use std::sync::{Arc, Mutex, PoisonError};

use kiln_memory::measures::Measures;

use super::{ExecutionTarget, Workload};
use crate::error::Result;

/// Workloads that are remembered: all numbers of images that share a step, with texts of some lengths.
const MOST: usize = 64;

/// A workload on a target.
type Key = (Workload, ExecutionTarget);

/// The measures of the last workloads with a planner's networks; the one that was asked for last comes last.
#[derive(Default)]
pub(super) struct KnownMeasures(Mutex<Vec<(Key, Arc<Measures>)>>);

impl KnownMeasures {
    /// The measures of `key`: those that are known, else those of `measure`.
    ///
    /// # Errors
    /// Errors of `measure`.
    pub(super) fn get(&self, key: Key, measure: impl FnOnce() -> Result<Measures>) -> Result<Arc<Measures>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let measures = match known.iter().position(|(other, _)| *other == key) {
            Some(place) => known.remove(place).1,
            None => Arc::new(measure()?),
        };
        if known.len() == MOST {
            known.remove(0);
        }
        known.push((key, measures.clone()));
        Ok(measures)
    }

    /// Forgets all: the networks are others now.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use kiln_models::{Architecture, Preset};
    use kiln_ops::Target;

    use super::*;
    use crate::plan::Planner;

    #[test]
    fn networks_run_dry_once_for_a_workload() {
        let mut planner = Planner::of_configurations(&Architecture::preset(Preset::Emoji).unwrap()).unwrap();
        let on = ExecutionTarget::new(Target::Gpu, DType::F16);
        let work = |images| planner.work([None; 2], None, images).unwrap();
        let [one, two] = [1, 2].map(work);
        let other_type = ExecutionTarget { dtype: DType::F32, ..on };
        let first = planner.measure(&one, on).unwrap();
        assert!(!Arc::ptr_eq(&first, &planner.measure(&two, on).unwrap()));
        assert!(!Arc::ptr_eq(&first, &planner.measure(&one, other_type).unwrap()));
        assert!(Arc::ptr_eq(&first, &planner.measure(&one, on).unwrap()));
        planner.set_controls(&[]);
        assert!(!Arc::ptr_eq(&first, &planner.measure(&one, on).unwrap()), "the networks are others");
        let known: Vec<_> = (1..=MOST + 1).map(|steps| Workload { steps, ..two }).collect();
        let all: Vec<_> = known.iter().map(|work| planner.measure(work, on).unwrap()).collect();
        assert!(Arc::ptr_eq(&all[1], &planner.measure(&known[1], on).unwrap()));
        assert!(!Arc::ptr_eq(&all[0], &planner.measure(&known[0], on).unwrap()), "the oldest one has left");
    }
}
