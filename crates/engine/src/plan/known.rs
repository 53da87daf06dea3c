//! Measures and plans of the last workloads. A server plans for every job that joins or leaves, again and again for
//! the same workloads. The dry run of all networks takes longer than a step of a small model on a GPU, and a plan half as long.

use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// Entries that are remembered: all numbers of images that share a step, with texts of some lengths.
const MOST: usize = 64;

/// The values of the last keys; the one that was asked for last comes last.
pub(crate) struct Known<K, V>(Mutex<Vec<(K, V)>>);

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V: Clone> Known<K, V> {
    /// The value of `key`: the one that is known, else that of `compute`.
    ///
    /// # Errors
    /// Errors of `compute`.
    pub(crate) fn get(&self, key: K, compute: impl FnOnce() -> Result<V>) -> Result<V> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = match known.iter().position(|(other, _)| *other == key) {
            Some(place) => known.remove(place).1,
            None => compute()?,
        };
        if known.len() == MOST {
            known.remove(0);
        }
        known.push((key, value.clone()));
        Ok(value)
    }

    /// Forgets all: what the values depend on has changed.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::DType;
    use kiln_models::{Architecture, Preset};
    use kiln_ops::Target;

    use super::*;
    use crate::plan::{ExecutionTarget, Planner, Workload};

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
