//! Floor 0: memory pools and memory accounting.
//!
//! The house's rule for this crate is one policy (size classes, splitting, coalescing, trimming, statistics) under
//! three pools: host blocks, page-locked staging buffers, device memory. What is here today is the accounting that
//! needs no pool ([`ProcessMemory`] and [`SystemMemory`], the system's own figures) and [`DevicePool`], a card's memory.
//!
//! This crate knows no tensor and no network.
//!
//! ```
//! if let Some(memory) = kiln_mempool::ProcessMemory::now() {
//!     assert!(memory.peak_resident >= memory.resident);
//! }
//! ```
#![deny(unsafe_code)] // allowed in the pools

mod device;
mod error;
mod process;
mod system;

pub use device::{DeviceMemory, DevicePool};
pub use error::{Error, Result};
pub use process::ProcessMemory;
pub use system::SystemMemory;
