//! Floor 0: memory pools and memory accounting.
//!
//! The house's rule for this crate is one policy (size classes, splitting, coalescing, trimming, statistics) under
//! three pools: host blocks, page-locked staging buffers, device memory. What is here today is the accounting that
//! needs no pool: [`ProcessMemory`]
//! and [`SystemMemory`], the system's own figures.
//!
//! This crate knows no tensor and no network.
//!
//! ```
//! if let Some(memory) = kiln_mempool::ProcessMemory::now() {
//!     assert!(memory.peak_resident >= memory.resident);
//! }
//! ```
#![deny(unsafe_code)]

mod process;
mod system;

pub use process::ProcessMemory;
pub use system::SystemMemory;
