//! The system's statistics of the machine.

use std::fs;

/// The memory of this machine in bytes, from Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemMemory {
    /// Physical memory.
    pub total: u64,
    /// Memory that is available without swapping, including cached files (`MemAvailable`).
    pub available: u64,
}

impl SystemMemory {
    /// The current values. `None` where the system does not report them.
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        Some(Self { total: kibibytes(&text, "MemTotal:")?, available: kibibytes(&text, "MemAvailable:")? })
    }
}

/// The value in bytes of a line like `MemTotal:  1024 kB`.
pub(crate) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
