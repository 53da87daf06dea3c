//! Page faults and memory calls of a run, and trimming of pools between its stages.

use std::time::Instant;

use kiln_mempool::{DevicePool, HostPool, PageFaults, ProcessMemory};

/// Page faults and system calls of the host pool since a point in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemRequests {
    /// Pages that were not in memory; 0 where the system does not tell.
    pub faults: u64,
    /// Calls of the kernel that the host pool made.
    pub calls: u64,
}

impl SystemRequests {
    /// The counts since the start of the process.
    pub fn so_far() -> Self {
        let faults = PageFaults::now().map_or(0, |faults| faults.minor + faults.major);
        Self { faults, calls: HostPool::statistics().system_calls }
    }

    /// The counts since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { faults: self.faults - earlier.faults, calls: self.calls - earlier.calls }
    }
}

/// The fraction of the host pool that may be free when the next stage begins.
pub const TRIM_ABOVE: f64 = 0.05;
/// The maximum fragmentation.
const SCATTERED: f64 = 0.25;
/// The fraction of a GPU's pool that may be free after a stage.
pub const CARD_TRIM_ABOVE: f64 = 0.7;

/// Trims the host pool before `stage` if the free memory of earlier stages is fragmented: the stage's tensors have
/// other sizes and would need additional memory. Within one run the memory is reused without new faults.
pub fn trim(stage: &str) {
    let (before, start) = (HostPool::statistics(), Instant::now());
    let freed = if before.fragmentation() > SCATTERED { HostPool::trim(TRIM_ABOVE) } else { 0 };
    log_trim("host", before.reserved as u64, freed as u64, start, "fragmented", stage);
}

/// Trims a GPU's pool after `stage` if the free part of the reserved memory is more than `threshold`, from 0 to 1: 0
/// frees everything.
pub fn trim_card(pool: Option<&DevicePool>, threshold: f64, stage: &str) {
    let Some(pool) = pool else { return };
    let start = Instant::now();
    match pool.trim(threshold) {
        Ok(0) => {}
        Ok(freed) => {
            let before = pool.memory().map_or(0, |after| after.reserved + freed);
            log_trim("GPU", before, freed, start, "threshold", stage);
        }
        Err(error) => tracing::warn!("after {stage}: {error}"),
    }
}

/// Logs a trim that freed memory.
fn log_trim(pool: &str, before: u64, freed: u64, start: Instant, reason: &str, stage: &str) {
    if freed > 0 {
        tracing::debug!(
            pool,
            before = mib(before),
            after = mib(before.saturating_sub(freed)),
            freed = mib(freed),
            milliseconds = start.elapsed().as_secs_f64() * 1e3,
            reason,
            stage,
            "trimmed: MiB of a pool"
        );
    }
}

/// Logs the GPU memory after a stage in MiB. The driver is only called if the message is enabled, because its query of
/// free memory is slow.
pub fn log_card(pool: Option<&DevicePool>, stage: &str) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let Some(Ok(gpu)) = pool.map(DevicePool::memory) else { return };
    let calls = DevicePool::calls();
    tracing::debug!(
        used = mib(gpu.used),
        reserved = mib(gpu.reserved),
        peak_used = mib(gpu.peak_used),
        peak_reserved = mib(gpu.peak_reserved),
        driver = mib(gpu.driver),
        requests = calls.requests,
        calls = calls.driver,
        "{stage}: MiB of the GPU's pool"
    );
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Logs the CPU memory after a stage in MiB.
pub fn log(stage: &str) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let pool = HostPool::statistics();
    let process = ProcessMemory::now().unwrap_or_default();
    tracing::debug!(
        used = mib(pool.used as u64),
        reserved = mib(pool.reserved as u64),
        peak_used = mib(pool.peak_used as u64),
        peak_reserved = mib(pool.peak_reserved as u64),
        fragmentation = format!("{:.2}", pool.fragmentation()),
        reuse = format!("{:.3}", pool.reuse_rate()),
        calls = pool.system_calls,
        resident = mib(process.resident),
        peak_resident = mib(process.peak_resident),
        "{stage}: MiB of the host pool and of the process"
    );
}

/// Logs what `steps` steps, all but the first, asked the system for.
pub fn log_steps(steps: usize, asked: SystemRequests) {
    if steps > 0 {
        let SystemRequests { faults, calls } = asked;
        tracing::debug!("{steps} steps after the first: {faults} page faults, {calls} calls of the kernel for memory");
    }
}
