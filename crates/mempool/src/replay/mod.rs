//! Replay of memory traces under other allocation policies.
//!
//! Each [`ReplayPolicy`] is a model of an allocator: it gets the requests of a trace in their order, and tracks its
//! calls of the driver and the memory that it would reserve. No memory is accessed. The models have unlimited memory,
//! so none ever releases memory for lack of it.

mod models;
#[cfg(test)]
mod tests;
mod torch;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::plan::{Lifetime, Plan};
use crate::trace::{EventKind, MemoryTrace};
pub use torch::TorchOptions;

/// The unit in which a driver or a kernel allocates large requests, in bytes.
const GRANULE: usize = 2 << 20;

/// An allocation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// Kiln's: [`crate::Arena`], with growing address space, and physical memory only for pages that were touched.
    Kiln,
    /// First fit, with the same address space and without size classes.
    FirstFit,
    /// PyTorch's caching allocator.
    Torch(TorchOptions),
    /// A call of the driver for every request and every free.
    Plain,
    /// A plan of all requests in advance ([`Plan`]).
    Planned,
}

impl ReplayPolicy {
    /// The policies that are worth comparing, with their names.
    pub fn all() -> Vec<(&'static str, Self)> {
        let split = TorchOptions { max_split: Some(128 << 20), ..TorchOptions::default() };
        let rounded = TorchOptions { roundup_power2_divisions: Some(8), ..TorchOptions::default() };
        vec![
            ("kiln", Self::Kiln),
            ("planned", Self::Planned),
            ("first fit", Self::FirstFit),
            ("PyTorch", Self::Torch(TorchOptions::default())),
            ("PyTorch, max_split_size_mb:128", Self::Torch(split)),
            ("PyTorch, roundup_power2_divisions:8", Self::Torch(rounded)),
            ("plain", Self::Plain),
        ]
    }
}

/// The result of a trace under a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Replayed {
    /// Requests.
    pub allocations: u64,
    /// Calls of the driver or the kernel for memory.
    pub driver_calls: u64,
    /// The peak of the requested bytes in use, the same under all policies.
    pub peak_used: u64,
    /// The peak of the bytes that the policy reserved.
    pub peak_reserved: u64,
    /// The duration of the replay, which is mostly the work of the policy.
    pub time: Duration,
}

impl Replayed {
    /// Reserved bytes for each byte in use, at the peaks.
    pub fn ratio(&self) -> f64 {
        if self.peak_used == 0 { 1.0 } else { self.peak_reserved as f64 / self.peak_used as f64 }
    }
}

/// An allocator that accesses no memory.
trait Model {
    /// The address of a request.
    fn allocate(&mut self, bytes: usize) -> usize;
    fn free(&mut self, address: usize);
    /// Reserved bytes.
    fn reserved(&self) -> u64;
    fn driver_calls(&self) -> u64;
}

/// Replays a trace. Requests of several pools are taken together: see [`MemoryTrace::of`].
pub fn replay(trace: &MemoryTrace, policy: ReplayPolicy) -> Replayed {
    let requests = Requests::of(trace);
    let mut replayed =
        Replayed { allocations: requests.allocations, peak_used: requests.peak_used, ..Replayed::default() };
    let start = Instant::now();
    if policy == ReplayPolicy::Planned {
        let plan = Plan::new(&requests.lifetimes(), 512);
        (replayed.driver_calls, replayed.peak_reserved) = (1, plan.bytes.next_multiple_of(GRANULE) as u64);
        replayed.time = start.elapsed();
        return replayed;
    }
    let mut model: Box<dyn Model> = match policy {
        ReplayPolicy::Kiln => Box::new(models::Kiln::default()),
        ReplayPolicy::FirstFit => Box::new(models::FirstFit::default()),
        ReplayPolicy::Torch(options) => Box::new(torch::Torch::new(options)),
        ReplayPolicy::Plain | ReplayPolicy::Planned => Box::new(models::Plain::default()),
    };
    let mut addresses = vec![0; requests.allocations as usize];
    for step in &requests.steps {
        match *step {
            Step::Allocate { index, bytes } => {
                addresses[index] = model.allocate(bytes);
                replayed.peak_reserved = replayed.peak_reserved.max(model.reserved());
            }
            Step::Free { index } => model.free(addresses[index]),
        }
    }
    replayed.time = start.elapsed();
    replayed.driver_calls = model.driver_calls();
    replayed
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate { index: usize, bytes: usize },
    Free { index: usize },
}

/// The requests of a trace, numbered in their order.
struct Requests {
    steps: Vec<Step>,
    allocations: u64,
    peak_used: u64,
}

impl Requests {
    fn of(trace: &MemoryTrace) -> Self {
        let mut live: HashMap<u64, (usize, u64)> = HashMap::new();
        let (mut steps, mut count, mut used, mut peak_used) = (Vec::new(), 0, 0u64, 0);
        for event in &trace.events {
            match event.what {
                EventKind::Allocated { id, bytes, .. } => {
                    live.insert(id, (count, bytes));
                    steps.push(Step::Allocate { index: count, bytes: bytes as usize });
                    count += 1;
                    used = used.saturating_add(bytes);
                    peak_used = used.max(peak_used);
                }
                EventKind::Freed { id } => {
                    if let Some((index, bytes)) = live.remove(&id) {
                        steps.push(Step::Free { index });
                        used -= bytes;
                    }
                }
                EventKind::Stage { .. } => {}
            }
        }
        Self { steps, allocations: count as u64, peak_used }
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        let mut lifetimes = Vec::with_capacity(self.allocations as usize);
        for (now, step) in self.steps.iter().enumerate() {
            match *step {
                Step::Allocate { bytes, .. } => {
                    lifetimes.push(Lifetime { bytes, start: now, end: self.steps.len() });
                }
                Step::Free { index } => lifetimes[index].end = now,
            }
        }
        lifetimes
    }
}
