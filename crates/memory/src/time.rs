//! A rough estimate of a batch's time, sufficient to compare the images per second of two plans.
//!
//! Compute time is operations divided by a rate. A GPU has a constant part for each step: its launches, and the maps
//! that are too small to fill it. Copies to a GPU overlap with its compute; on the CPU they use its cores.

use candle_core::DType;
use kiln_ops::Target;
use kiln_ops::device::Gpu;
use kiln_weights::{CopyTimes, Estimate};
use serde::Serialize;

use kiln_setup::link::Link;

/// The rates of a device per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Floating-point operations.
    pub flop: f64,
    /// Bytes of weights that are copied or packed.
    pub copy: f64,
    /// Seconds of each copy in addition to its bytes.
    pub seconds_per_copy: f64,
    /// Seconds of each wait of copies and computing for each other.
    pub seconds_per_wait: f64,
    /// Seconds of a step besides its operations, whatever its batch size.
    pub seconds_per_step: f64,
    /// Whether copies overlap with compute.
    pub overlap: bool,
}

/// A GPU's rate in f16 and bf16: the rate of an H200 in the steps of SD1.5 and SDXL, less the constant part.
const CARD_FLOP: f64 = 4.8e14;
/// The constant part of a step on a GPU, of the same measurements.
const CARD_SECONDS_PER_STEP: f64 = 2e-3;
/// The rate of a small GPU in f16 without units for matrices, as kernels of all vendors reach it.
const SMALL_FLOP: f64 = 5e12;
/// The constant part of its step: the host's time for each kernel.
const SMALL_SECONDS_PER_STEP: f64 = 2e-2;
/// A core's rate in f32, of AVX-512.
const CORE_FLOP: f64 = 75e9;
/// Bytes of weights that a core packs.
const CORE_WEIGHTS: f64 = 1e9;

/// Operations of a multiprocessor's tensor cores in a clock, in f16 with f32 sums, from NVIDIA's white papers of the
/// architectures. Where GPUs of one capability differ it is that of GeForce.
fn flop_per_clock((major, minor): (i32, i32)) -> f64 {
    match (major, minor) {
        (10, _) => 8192.0,
        (9, _) => 4096.0,
        (8, 0) => 2048.0,
        (7, 0..=2) => 1024.0,
        _ => 512.0,
    }
}

impl Rates {
    /// The expected rates of a target in a type; of a GPU with the assumed link.
    pub fn of(target: Target, dtype: DType) -> Self {
        let half = dtype != DType::F32;
        match target {
            Target::Gpu => {
                let flop = if half { CARD_FLOP } else { CARD_FLOP / 16.0 }; // f32 without tensor cores
                let unknown = Self {
                    flop,
                    copy: 0.0,
                    seconds_per_copy: 0.0,
                    seconds_per_wait: 0.0,
                    seconds_per_step: CARD_SECONDS_PER_STEP,
                    overlap: true,
                };
                unknown.with_link(&Link::ASSUMED, true)
            }
            Target::Cpu { threads } => {
                let (cores, fast) = (threads as f64, dtype == DType::BF16);
                let flop = cores * CORE_FLOP * if fast { 2.0 } else { 1.0 };
                let copy = cores * CORE_WEIGHTS * dtype.size_in_bytes() as f64;
                Self { flop, copy, seconds_per_copy: 0.0, seconds_per_wait: 0.0, seconds_per_step: 0.0, overlap: false }
            }
        }
    }

    /// Rates of a GPU by Vulkan, Metal or DirectX 12, of which nothing is known: those of a small one. Threads pack the weights that it
    /// copies.
    pub fn portable(threads: usize, dtype: DType) -> Self {
        let flop = if dtype == DType::F32 { SMALL_FLOP / 2.0 } else { SMALL_FLOP };
        let Self { copy, .. } = Self::of(Target::Cpu { threads }, dtype);
        Self { flop, copy, seconds_per_step: SMALL_SECONDS_PER_STEP, ..Self::of(Target::Gpu, dtype) }
    }

    /// Sets the copies over this link, by a run that may pin memory if `pins`.
    pub fn with_link(self, link: &Link, pins: bool) -> Self {
        let Link { seconds_per_copy, seconds_per_wait, .. } = *link;
        Self { copy: link.rate(pins), seconds_per_copy, seconds_per_wait, ..self }
    }

    /// Sets the computing rate of a GPU of this kind by its multiprocessors and their clock, compared with an H200.
    pub fn with_gpu(self, gpu: &Gpu) -> Self {
        let peak = |multiprocessors: usize, clock_khz: usize, capability| {
            multiprocessors as f64 * clock_khz as f64 * flop_per_clock(capability)
        };
        let own = peak(gpu.multiprocessors, gpu.clock_khz, gpu.compute_capability);
        if own > 0.0 { Self { flop: self.flop * own / peak(132, 1_980_000, (9, 0)), ..self } } else { self }
    }

    /// For streaming a network whose segments have so many operations. The constant part of a step is spread over them.
    pub fn estimate(&self, flop: &[f64]) -> Estimate {
        let Self { copy: bytes_per_second, seconds_per_copy, seconds_per_wait, overlap: by_engine, .. } = *self;
        let copies = CopyTimes { bytes_per_second, seconds_per_copy, seconds_per_wait, by_engine };
        let constant = self.seconds_per_step / flop.len().max(1) as f64;
        Estimate { seconds: flop.iter().map(|flop| flop / self.flop + constant).collect(), copies }
    }

    /// Seconds of copying `bytes`.
    pub fn copying(&self, bytes: usize) -> f64 {
        bytes as f64 / self.copy
    }

    /// Seconds of a part with `flop` operations per image for `n` images, for which `bytes` are copied.
    pub fn seconds(&self, flop: f64, n: usize, bytes: usize) -> f64 {
        let (compute, copying) = (flop * n as f64 / self.flop + self.seconds_per_step, self.copying(bytes));
        if self.overlap { compute.max(copying) } else { compute + copying }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4e12 operations per image at 2e12 per second, and 6e9 bytes at 1e9.
    #[test]
    fn copies_hide_on_a_gpu_and_not_on_the_cpu() {
        let (seconds_per_copy, seconds_per_wait) = (0.0, 0.0);
        let gpu =
            Rates { flop: 2e12, copy: 1e9, seconds_per_copy, seconds_per_wait, seconds_per_step: 1.0, overlap: true };
        assert_eq!(gpu.seconds(4e12, 1, 0), 3.0, "2 seconds of operations, and 1 second for the step");
        assert_eq!(gpu.seconds(4e12, 2, 1_000_000_000), 5.0, "the copy takes 1 second, in parallel with the step");
        assert_eq!(gpu.seconds(4e12, 1, 6_000_000_000), 6.0, "the step waits for the copy");
        let cpu = Rates { seconds_per_step: 0.0, overlap: false, ..gpu };
        assert_eq!(cpu.seconds(4e12, 1, 6_000_000_000), 8.0, "one after the other");
        assert_eq!(gpu.estimate(&[4e12, 1e12]).seconds, [2.5, 1.0]);
    }

    #[test]
    fn a_gpu_is_as_fast_as_its_multiprocessors() {
        let gpu = |multiprocessors, clock_khz, compute_capability| Gpu {
            ordinal: 0,
            name: String::new(),
            compute_capability,
            uuid: String::new(),
            pci: String::new(),
            driver_version: 0,
            multiprocessors,
            clock_khz,
            memory_free: 0,
            memory_total: 0,
        };
        let h200 = Rates::of(Target::Gpu, DType::F16);
        let share = |gpu: Gpu| h200.with_gpu(&gpu).flop / h200.flop;
        assert_eq!(share(gpu(132, 1_980_000, (9, 0))), 1.0);
        assert_eq!(share(gpu(66, 1_980_000, (9, 0))), 0.5);
        let laptop = share(gpu(20, 1_500_000, (8, 6)));
        assert!((0.01..0.02).contains(&laptop), "{laptop}");
        assert_eq!(share(gpu(132, 0, (9, 0))), 1.0, "nothing is known");
    }

    #[test]
    fn rates_follow_the_device() {
        let gpu = Rates::of(Target::Gpu, DType::F16);
        assert!(gpu.overlap && gpu.flop > 4.0 * Rates::of(Target::Gpu, DType::F32).flop);
        let cpu = |threads, dtype| Rates::of(Target::Cpu { threads }, dtype);
        let (one, eight) = (cpu(1, DType::F32), cpu(8, DType::F32));
        assert_eq!((eight.flop, eight.copy), (8.0 * one.flop, 8.0 * one.copy));
        assert!(cpu(1, DType::BF16).flop > one.flop && cpu(1, DType::F16).flop == one.flop);
        assert!(!one.overlap && one.seconds_per_step == 0.0);
        assert!(gpu.flop > 10.0 * cpu(64, DType::BF16).flop);
    }
}
