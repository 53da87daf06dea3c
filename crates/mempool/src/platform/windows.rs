//! The statistics of Windows.
#![allow(unsafe_code)]

use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use crate::process::{PageFaults, ProcessMemory};
use crate::system::SystemMemory;

pub(crate) fn system() -> Option<SystemMemory> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the call writes as many bytes to the structure as its first field says, which is its size.
    if unsafe { GlobalMemoryStatusEx(&raw mut status) } == 0 {
        return None;
    }
    // An allocation fails when the page files and the memory together have no room for it, even if it is never touched.
    let available = status.ullAvailPhys.min(status.ullAvailPageFile);
    Some(SystemMemory { total: status.ullTotalPhys, available, physical: status.ullTotalPhys })
}

pub(crate) fn process() -> Option<ProcessMemory> {
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS { cb: size, ..Default::default() };
    // SAFETY: the handle means this process and is never closed. The call writes at most `size` bytes to the structure.
    if unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) } == 0 {
        return None;
    }
    let bytes = |size: usize| size as u64;
    Some(ProcessMemory { resident: bytes(counters.WorkingSetSize), peak_resident: bytes(counters.PeakWorkingSetSize) })
}

/// Windows counts the faults that read a file and the others together.
pub(crate) fn faults() -> Option<PageFaults> {
    None
}
