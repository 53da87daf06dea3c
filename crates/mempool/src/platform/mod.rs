//! Statistics of systems that have no files for them: Windows and macOS. Elsewhere every function returns `None`.

#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(not(any(windows, target_os = "macos")), path = "none.rs")]
mod calls;

pub(crate) use calls::{faults, process, system};

#[cfg(all(test, any(windows, target_os = "macos")))]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        let memory = system().unwrap();
        assert!(memory.available > 0 && memory.available <= memory.total, "{memory:?}");
        assert!(memory.total >= 256 << 20 && memory.total == memory.physical, "{memory:?}");
    }

    #[test]
    fn memory_in_use_is_resident() {
        const BYTES: usize = 64 << 20;
        let before = process().unwrap();
        let block = std::hint::black_box(vec![1u8; BYTES]);
        let after = process().unwrap();
        assert!(after.resident >= before.resident + BYTES as u64 / 2, "{before:?} {after:?}");
        assert!(after.peak_resident >= after.resident && block[BYTES - 1] == 1, "{after:?}");
    }
}
