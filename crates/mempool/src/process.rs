//! What the system counts for this process.

use std::fs;

use crate::system::kibibytes;

/// The memory of this process in bytes, as Linux counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

/// How often this process needed a page of memory that it did not have, since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFaults {
    /// Faults that the system met from memory: a new page was cleared, or one of a cached file was found.
    pub minor: u64,
    /// Faults for which a file was read.
    pub major: u64,
}

impl PageFaults {
    /// The figures of this moment over all threads, or `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        parse_faults(&fs::read_to_string("/proc/self/stat").ok()?)
    }
}

/// Reads `/proc/self/stat`: fields 10 and 12 (proc(5)), counted behind the program's name, which may have spaces.
fn parse_faults(stat: &str) -> Option<PageFaults> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some(PageFaults { minor, major })
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

    #[test]
    fn faults_are_read() {
        let stat = "7 (a (b) c) R 1 7 7 0 -1 4194304 123 45 6 0 1 2";
        assert_eq!(parse_faults(stat), Some(PageFaults { minor: 123, major: 6 }));
        assert_eq!(parse_faults("7 (kiln) R 1"), None);
    }
}
