//! What the system counts for this process.

use std::fs;

use crate::system::kibibytes;

/// The memory of this process in bytes, as Linux counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Pages in physical memory now (`VmRSS`), those of mapped files among them.
    pub resident: u64,
    /// The most there ever were (`VmHWM`).
    pub peak_resident: u64,
}

impl ProcessMemory {
    /// The figures of this moment, or `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/self/status").ok()?)
    }
}

/// Reads `/proc/self/status`.
fn parse(status: &str) -> Option<ProcessMemory> {
    let bytes = |key| kibibytes(status, key);
    Some(ProcessMemory { resident: bytes("VmRSS:")?, peak_resident: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_is_read() {
        let status = "Name:\tkiln\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse(status), Some(ProcessMemory { resident: 1 << 20, peak_resident: 2 << 20 }));
        assert_eq!(parse("Name:\tkiln\n"), None);
    }
}
