//! The loop over denoising steps: tasks join it, share steps, and leave it.
//!
//! A task is a job of the engine with somebody who listens to it. One thread owns an engine; with several devices each has one
//! ([`worker`]; [`seats`] says who gets a task). Between two steps it lets tasks join a running batch ([`stepping`]), lets finished
//! ones leave ([`finishing`]), and chooses who takes part in the next step ([`policy`]). On the CPU each image has the bits that it
//! has alone, whatever shares its steps.
//!
//! Nothing here knows of HTTP.

mod active;
mod decoding;
mod finishing;
mod lanes;
mod order;
mod policy;
mod queue;
mod seats;
mod speed;
mod stepping;
mod stop;
mod task;
pub mod warm;
mod worker;

pub use queue::{Load, Refusal, Scheduler, SchedulerOptions};
pub use task::{Control, End, Listener, News, Previews, Task};
