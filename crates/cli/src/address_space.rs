//! The limit of this process's address space (`ulimit -v`), which no plan of memory knows.

use kiln_engine::{ByteSize, Error, Result};

/// The least with which a command that makes images ends with an image or with an error: code, the stacks of threads, the tables
/// of a model and the mapped files of the smallest one. Below it small allocations fail, and those end the process.
const LEAST: u64 = 128 << 20;

/// Refuses a limit with which no image can be made.
///
/// # Errors
/// [`Error::Device`] with the limit.
pub fn check() -> Result<()> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default(); // on Linux alone
    match limit(&limits).filter(|bytes| *bytes < LEAST) {
        None => Ok(()),
        Some(bytes) => Err(Error::Device(format!(
            "the address space of this process is limited to {} (ulimit -v); images take at least {} and the model's files, which \
             are mapped. Raise the limit, or limit memory with `vram_budget` or a control group",
            shown(bytes),
            shown(LEAST)
        ))),
    }
}

/// The soft limit in bytes; `None` for no limit.
fn limit(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
}

fn shown(bytes: u64) -> ByteSize {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read() {
        let limits = |value: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max cpu time              unlimited            unlimited            seconds\n\
                     Max address space         {value}            unlimited            bytes\n"
            )
        };
        assert_eq!(limit(&limits("83886080")), Some(80 << 20));
        assert_eq!(limit(&limits("unlimited")), None);
        assert_eq!(limit(""), None);
        check().unwrap();
    }
}
