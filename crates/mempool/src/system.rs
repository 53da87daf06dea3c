//! The system's statistics of the machine.

use std::fs;
use std::path::Path;

use crate::{cgroup, platform};

/// The memory that this process may use, in bytes, as the system counts it. The names of fields are those of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemMemory {
    /// Physical memory, or the limit of the control groups that this process is in if that is less.
    pub total: u64,
    /// Memory that is available without swapping, pages of cached files included: `MemAvailable`, or the memory that
    /// the control groups leave if that is less. Cached files that were not used recently do not count as used by the
    /// groups.
    pub available: u64,
    /// Physical memory of the machine.
    pub physical: u64,
}

impl SystemMemory {
    /// The figures of this moment, or `None` where the system does not report them.
    pub fn now() -> Option<Self> {
        platform::system().or_else(|| Self::below(Path::new("/")))
    }

    /// The figures that the files of the kernel say whose root is `root`.
    fn below(root: &Path) -> Option<Self> {
        let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let (physical, available) = (kibibytes(&text, "MemTotal:")?, kibibytes(&text, "MemAvailable:")?);
        Some(match cgroup::memory(root) {
            Some(group) => {
                let (total, available) = (physical.min(group.limit), available.min(group.available));
                Self { total, available, physical }
            }
            None => Self { total: physical, available, physical },
        })
    }

    /// Whether control groups allow less than the machine has.
    pub fn is_limited(&self) -> bool {
        self.total < self.physical
    }
}

/// The value in bytes of a line like `MemTotal:  1024 kB`.
pub(crate) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_limit_what_the_machine_has() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("proc/meminfo", "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  600 kB\n");
        let kib = |bytes: u64| bytes << 10;
        let free = SystemMemory { total: kib(1000), available: kib(600), physical: kib(1000) };
        assert_eq!(SystemMemory::below(root.path()), Some(free));
        assert!(!free.is_limited());

        write("proc/self/cgroup", "0::/box\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        for (limit, used, total, available) in
            [(800, 100, 800, 600), (800, 300, 800, 500), (800, 900, 800, 0), (4000, 0, 1000, 600)]
        {
            write("sys/fs/cgroup/box/memory.max", &kib(limit).to_string());
            write("sys/fs/cgroup/box/memory.current", &kib(used).to_string());
            let found = SystemMemory::below(root.path()).unwrap();
            assert_eq!((found.total, found.available), (kib(total), kib(available)), "{limit} {used}");
            assert_eq!(found.is_limited(), limit < 1000);
        }
    }
}
