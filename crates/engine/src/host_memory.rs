//! What a run asks the system for, and what is given back between its stages.

use std::time::Instant;

use kiln_mempool::{DevicePool, HostPool, PageFaults, ProcessMemory};

/// Page faults and calls of the host pool since some moment.
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

/// The part of the host pool that may wait for requests when the next stage begins.
pub(crate) const TRIM_ABOVE: f64 = 0.05;
/// How scattered it may be.
const SCATTERED: f64 = 0.25;
/// The part of a card's pool that may wait for requests after a stage.
pub(crate) const CARD_TRIM_ABOVE: f64 = 0.7;

/// Gives back what the stages before `stage` left in the host pool where it is scattered: the stage's tensors have
/// other sizes, and would need new memory beside it. In one run it serves them as it is, without new faults.
pub(crate) fn trim(stage: &str) {
    let (before, start) = (HostPool::statistics(), Instant::now());
    let freed = if before.fragmentation() > SCATTERED { HostPool::trim(TRIM_ABOVE) } else { 0 };
    log_trim("host", before.reserved as u64, freed as u64, start, "scattered", stage);
}

/// Gives back what waits in a card's pool after `stage`, where it is more than `threshold`, from 0 to 1, of what the
/// pool keeps: 0 gives back all.
pub(crate) fn trim_card(pool: Option<&DevicePool>, threshold: f64, stage: &str) {
    let Some(pool) = pool else { return };
    let start = Instant::now();
    match pool.trim(threshold) {
        Ok(0) => {}
        Ok(freed) => {
            let before = pool.memory().map_or(0, |after| after.reserved + freed);
            log_trim("card", before, freed, start, "threshold", stage);
        }
        Err(error) => tracing::warn!("after {stage}: {error}"),
    }
}

/// One line for a trim that gave something back.
fn log_trim(pool: &str, before: u64, freed: u64, start: Instant, reason: &str, stage: &str) {
    if freed > 0 {
        tracing::info!(
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

/// Logs what a card's memory holds after a stage, in MiB. Asks only where somebody listens: the driver takes its time for
/// free memory.
pub(crate) fn log_card(pool: Option<&DevicePool>, stage: &str) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let Some(Ok(card)) = pool.map(DevicePool::memory) else { return };
    let calls = DevicePool::calls();
    tracing::info!(
        used = mib(card.used),
        reserved = mib(card.reserved),
        peak_used = mib(card.peak_used),
        peak_reserved = mib(card.peak_reserved),
        driver = mib(card.driver),
        requests = calls.requests,
        calls = calls.driver,
        "{stage}: MiB of the card's pool"
    );
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Logs what the processor's memory holds after a stage, in MiB.
pub(crate) fn log(stage: &str) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let pool = HostPool::statistics();
    let process = ProcessMemory::now().unwrap_or_default();
    tracing::info!(
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
pub(crate) fn log_steps(steps: usize, asked: SystemRequests) {
    if steps > 0 {
        let SystemRequests { faults, calls } = asked;
        tracing::info!("{steps} steps after the first: {faults} page faults, {calls} calls of the kernel for memory");
    }
}
