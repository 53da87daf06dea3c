//! The limit on the process's memory that engines on the CPU set by their budgets.

use std::sync::{Mutex, PoisonError};

use kiln_mempool::HostPool;

/// The budget of an engine on the CPU during its lifetime, a limit on the memory of the process: the largest of all engines on
/// the CPU, and none if one of them has no budget.
pub struct Ceiling(Option<usize>);

/// The budgets of the engines on the CPU.
static CEILINGS: Mutex<Vec<Option<usize>>> = Mutex::new(Vec::new());

impl Ceiling {
    /// An engine with this budget in bytes.
    pub fn new(bytes: Option<usize>) -> Self {
        Self::change(|all| all.push(bytes));
        Self(bytes)
    }

    fn change(change: impl FnOnce(&mut Vec<Option<usize>>)) {
        let mut all = CEILINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let had_any = all.iter().any(Option::is_some);
        change(&mut all);
        // A limit that the program has set itself stays where no engine has one.
        if had_any || all.iter().any(Option::is_some) {
            let largest = all.iter().copied().reduce(|a, b| Some(a?.max(b?)));
            HostPool::set_ceiling(largest.flatten());
        }
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        Self::change(|all| {
            if let Some(own) = all.iter().position(|bytes| *bytes == self.0) {
                all.swap_remove(own);
            }
        });
    }
}
