//! The system's statistics of this process.

use std::fs;

use crate::platform;
use crate::system::kibibytes;

/// The memory of this process in bytes. The names in parentheses are those of Linux.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Physical memory now (`VmRSS`), including mapped files.
    pub resident: u64,
    /// The peak of `resident` (`VmHWM`).
    pub peak_resident: u64,
}

impl ProcessMemory {
    /// The current values. `None` where the system does not report them.
    pub fn now() -> Option<Self> {
        platform::process().or_else(|| parse(&fs::read_to_string("/proc/self/status").ok()?))
    }
}

/// Reads `/proc/self/status`.
fn parse(status: &str) -> Option<ProcessMemory> {
    let bytes = |key| kibibytes(status, key);
    Some(ProcessMemory { resident: bytes("VmRSS:")?, peak_resident: bytes("VmHWM:")? })
}

/// Page faults of this process since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFaults {
    /// Faults that needed no file: a new page was cleared, or a page of a cached file was mapped.
    pub minor: u64,
    /// Faults that read a file.
    pub major: u64,
}

impl PageFaults {
    /// The current values over all threads. `None` where the system does not report them.
    pub fn now() -> Option<Self> {
        platform::faults().or_else(|| parse_faults(&fs::read_to_string("/proc/self/stat").ok()?))
    }
}

/// Reads `/proc/self/stat`: fields 10 and 12 (proc(5)), counted from the end of the program's name, which may have
/// spaces.
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
    fn the_status_file_is_parsed() {
        let status = "Name:\tkiln\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse(status), Some(ProcessMemory { resident: 1 << 20, peak_resident: 2 << 20 }));
        assert_eq!(parse("Name:\tkiln\n"), None);
    }

    #[test]
    fn page_faults_are_parsed() {
        let stat = "7 (a (b) c) R 1 7 7 0 -1 4194304 123 45 6 0 1 2";
        assert_eq!(parse_faults(stat), Some(PageFaults { minor: 123, major: 6 }));
        assert_eq!(parse_faults("7 (kiln) R 1"), None);
    }
}
