//! The machine that a measurement or a trace ran on.

use candle_core::Device;
use serde::Serialize;

use crate::devices::devices;

/// A machine, as far as it matters to speed.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Threads that were used.
    pub threads: usize,
    /// `cpu`, or the card's name.
    pub device: String,
}

impl Machine {
    /// The machine that `device` belongs to.
    pub fn new(device: &Device) -> Self {
        let found = devices();
        let card = || match device.location() {
            candle_core::DeviceLocation::Cuda { gpu_id } => found.cards.iter().find(|card| card.ordinal == gpu_id),
            _ => None,
        };
        let device =
            if device.is_cpu() { "cpu".into() } else { card().map_or("card".into(), |card| card.name.clone()) };
        Self { processor: found.processor, threads: rayon::current_num_threads(), device }
    }
}
