//! The statistics of macOS.
#![allow(unsafe_code)]

use std::ptr;

use crate::process::{PageFaults, ProcessMemory};
use crate::system::SystemMemory;

pub(crate) fn system() -> Option<SystemMemory> {
    let (physical, pages) = (physical()?, pages()?);
    // SAFETY: the call reads a number of the system.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    // Inactive pages are files that no program reads now, and memory that can be compressed.
    let available = (u64::from(pages.free_count) + u64::from(pages.inactive_count)) * page;
    Some(SystemMemory { total: physical, available: available.min(physical), physical })
}

fn physical() -> Option<u64> {
    let (mut bytes, mut size) = (0u64, size_of::<u64>());
    // SAFETY: the name ends in a zero byte, and the call writes at most `size` bytes to `bytes`. Nothing is set.
    let answer = unsafe {
        libc::sysctlbyname(c"hw.memsize".as_ptr(), (&raw mut bytes).cast(), &raw mut size, ptr::null_mut(), 0)
    };
    (answer == 0 && size == size_of::<u64>()).then_some(bytes)
}

#[expect(deprecated, reason = "another crate for one function: `libc` has the structures that belong to it")]
fn pages() -> Option<libc::vm_statistics64> {
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut pages: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut words = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: the call writes at most `words` words to the structure, which is its size.
    let answer = unsafe {
        libc::host_statistics64(libc::mach_host_self(), libc::HOST_VM_INFO64, (&raw mut pages).cast(), &raw mut words)
    };
    (answer == libc::KERN_SUCCESS).then_some(pages)
}

pub(crate) fn process() -> Option<ProcessMemory> {
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one structure.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return None;
    }
    let resident = task()?.pti_resident_size;
    let peak = u64::try_from(usage.ru_maxrss).ok()?; // bytes here, and kibibytes on other systems
    Some(ProcessMemory { resident, peak_resident: peak.max(resident) })
}

pub(crate) fn faults() -> Option<PageFaults> {
    let task = task()?;
    let (all, major) = (u64::try_from(task.pti_faults).ok()?, u64::try_from(task.pti_pageins).ok()?);
    Some(PageFaults { minor: all.saturating_sub(major), major })
}

/// The counters of the system for this process.
fn task() -> Option<libc::proc_taskinfo> {
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut task: libc::proc_taskinfo = unsafe { std::mem::zeroed() };
    let size = libc::c_int::try_from(size_of::<libc::proc_taskinfo>()).ok()?;
    // SAFETY: the call writes at most `size` bytes to the structure.
    let written =
        unsafe { libc::proc_pidinfo(libc::getpid(), libc::PROC_PIDTASKINFO, 0, (&raw mut task).cast(), size) };
    (written == size).then_some(task)
}
