//! The samplers, their schedules and generators.

mod contract;
mod diffusers_sums;
mod dpm_solver_sde;
mod flow;
mod kdiffusion;
mod programs;
mod rng;
mod rng_cuda;
mod steps;
