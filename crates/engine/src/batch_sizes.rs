//! What a set asks before it chooses how many images run at once.

use kiln_request::Job;

use crate::engine::Engine;
use crate::error::Result;
use crate::machine::Machine;
use crate::plan::Workload;

impl Engine {
    /// How many images like that of `job` have the most images per second by the estimate of the memory plan, at most `most`,
    /// with the networks that are open.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] where not even one image fits.
    pub fn planned_batch_size(&self, job: &Job, most: usize) -> Result<usize> {
        self.memory_manager.batch_size(Workload::of(job), most)
    }

    /// Whether `n` images like that of `job` fit into the budget, or into the memory that was free before the model was loaded.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn has_room_for(&self, job: &Job, n: usize) -> Result<bool> {
        self.memory_manager.has_room_for(Workload { batch_size: n, ..Workload::of(job) })
    }

    /// All that decides on the speed of batches of images like that of `job`, in words: device, types, networks, size and
    /// options. Weights do not, so that models of one architecture have the same.
    pub fn kind_of_batches(&self, job: &Job) -> String {
        let machine = Machine { threads: 0, ..Machine::new(&self.device) }; // the plan's device has the engine's threads
        let kernels = kiln_ops::device::cpu_info().path;
        let work = Workload { batch_size: 1, ..Workload::of(job) };
        let setup = &self.setup;
        let more = (setup.compute, setup.overlap, setup.taesd.is_some(), setup.second.is_some());
        let networks = (self.memory_manager.describe_all(), self.networks.first.controls.configs());
        let version = env!("CARGO_PKG_VERSION");
        format!("{version}, {machine:?}, {kernels}, {more:?}, {networks:?}, {work:?}")
    }
}
