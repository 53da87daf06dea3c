//! The speed of copies from host memory to a GPU, measured with the copies that streaming makes.

use std::sync::Arc;

use candle_core::{DType, Device, DeviceLocation, Tensor};
use kiln_mempool::{PinnedConfig, PinnedPool};

use super::{Copy, HostSlab, Point, Ring};
use crate::error::{Error, Result};

/// Bytes of a large copy: 0.6 ms at 55 GB/s and 11 ms at 3 GB/s. It fills each staging buffer of pageable memory twice.
const LARGE: usize = 32 << 20;
/// Bytes of a small copy, whose time is what any copy takes.
const SMALL: usize = 4 << 10;
/// Large copies of each kind. The first ones wake a link up that saves power, so the fastest counts.
const RUNS: usize = 4;
/// Small copies in a row. The host submits them while a large copy runs, so that its own time does not count.
const CHAIN: usize = 16;

/// The speed of copies to a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second of a large copy from pinned memory.
    pub pinned: f64,
    /// Bytes per second of a large copy from pageable memory, which goes through staging buffers.
    pub pageable: f64,
    /// Seconds that each copy takes in addition to its bytes.
    pub seconds_per_copy: f64,
    /// Seconds from the end of a copy to the start of computing that waits for it, and also from the end of computing to
    /// the start of a copy that waits for it.
    pub seconds_per_wait: f64,
}

impl LinkSpeed {
    /// Measures the link of `device`: a few ms with 55 GB/s, and about 0.15 s with 3 GB/s. Takes 32 MiB of the device's memory
    /// and 80 MiB of the host's, which are free afterwards. The host waits for the device.
    ///
    /// # Errors
    /// [`Error::NoCuda`] in a build without CUDA and for the CPU, [`Error::Driver`] and [`Error::Candle`] where memory or
    /// a copy is refused.
    pub fn measure(device: &Device) -> Result<Self> {
        let DeviceLocation::Cuda { gpu_id } = device.location() else { return Err(Error::NoCuda) };
        let refused = |error: kiln_mempool::Error| Error::Driver(error.to_string());
        // Write-combined as in runs.
        let config = PinnedConfig { cap: 4 * LARGE, write_combined: true };
        let pool = PinnedPool::new(gpu_id, config).map_err(refused)?;
        let slab = |bytes: usize, pool: Option<&PinnedPool>| -> Result<Arc<HostSlab>> {
            // Written: the system has one page for all memory that was never written, which is read from the cache.
            let slab = Tensor::ones(bytes / size_of::<f32>(), DType::F32, &Device::Cpu)?;
            Ok(Arc::new(HostSlab::new(slab, pool)?))
        };
        let bench = |slabs| -> Result<Bench> {
            Ok(Bench { ring: Ring::new(device, DType::F32, LARGE / size_of::<f32>(), slabs, true)? })
        };
        // Rings of their own: one with pageable memory has a thread that submits copies, which takes longer.
        let pageable = bench(vec![slab(LARGE, None)?])?.rate(0)?;
        let slabs = vec![slab(LARGE, Some(&pool))?, slab(SMALL, Some(&pool))?];
        if slabs.iter().any(|slab| !slab.is_pinned()) {
            return Err(Error::Driver("no memory could be pinned".into()));
        }
        let mut bench = bench(slabs)?;
        let pinned = bench.rate(0)?;
        let seconds_per_copy = bench.chain(false)?;
        // A link of the chain is a copy and two waits: for the computing before it, and of the computing after it.
        let seconds_per_wait = ((bench.chain(true)? - seconds_per_copy) / 2.0).max(0.0);
        Ok(Self { pinned, pageable, seconds_per_copy, seconds_per_wait })
    }
}

struct Bench {
    ring: Ring,
}

impl Bench {
    /// Bytes per second of the fastest large copy of a slab.
    fn rate(&mut self, slab: usize) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            least = least.min(self.ring.copy(slab, 0..LARGE, 0, &[])?.seconds()?);
        }
        if least > 0.0 { Ok(LARGE as f64 / least) } else { Err(Error::Driver("a copy took no time".into())) }
    }

    /// Seconds of each of some small copies behind a large one, each after the computing that waits for the one before,
    /// or all in a row.
    fn chain(&mut self, waits: bool) -> Result<f64> {
        let large = self.ring.copy(0, 0..LARGE, 0, &[])?;
        self.ring.wait(&large)?;
        let start = self.ring.point()?;
        let mut last: Option<(Copy, Point)> = None;
        for _ in 0..CHAIN {
            let after: Vec<Arc<Point>> =
                last.take().filter(|_| waits).map(|(_, point)| Arc::new(point)).into_iter().collect();
            let copy = self.ring.copy(1, 0..SMALL, 0, &after)?;
            if waits {
                self.ring.wait(&copy)?;
            }
            last = Some((copy, self.ring.point()?));
        }
        let Some((copy, point)) = last else { return Ok(0.0) };
        let seconds = if waits { point.seconds_after(&start)? } else { copy.seconds_after_copy(&large)? };
        Ok((seconds / CHAIN as f64).max(0.0))
    }
}
