//! How long a batch takes, roughly: enough to tell which of two plans makes more pictures a second.
//!
//! Compute is arithmetic over a rate, and a card has a fixed part a step: its launches and the maps that are too small
//! to fill it cost about as much as half a picture more (SD1.5 at 512x512 on an H200: 5.4 ms a step for one picture,
//! 3.9 for each of eight). Copies to a card hide behind its compute; on the processor they take cores from it.

use candle_core::DType;
use kiln_ops::Target;
use kiln_weights::Estimate;
use serde::Serialize;

/// What a device does in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Floating-point operations.
    pub flop: f64,
    /// Bytes of weights that are copied, or packed, to their place.
    pub copy: f64,
    /// Pictures that a step costs beside those that it makes.
    pub overhead: f64,
    /// Whether copies hide behind compute.
    pub overlap: bool,
}

/// A card's rate in f16 and bf16: what an H200 reaches in both SD1.5's and SDXL's steps.
const CARD_FLOP: f64 = 4.3e14;
/// A card's link: page-locked memory over PCIe 5.
const CARD_COPY: f64 = 55e9;
/// A core's rate in f32, of AVX-512.
const CORE_FLOP: f64 = 75e9;
/// Weights that a core packs.
const CORE_WEIGHTS: f64 = 1e9;

impl Rates {
    /// What may be expected of a target, in a type.
    pub fn of(target: Target, dtype: DType) -> Self {
        let half = dtype != DType::F32;
        match target {
            Target::Card => {
                let flop = if half { CARD_FLOP } else { CARD_FLOP / 16.0 }; // f32 without tensor cores
                Self { flop, copy: CARD_COPY, overhead: 0.5, overlap: true }
            }
            Target::Processor { threads } => {
                let (cores, fast) = (threads as f64, dtype == DType::BF16);
                let flop = cores * CORE_FLOP * if fast { 2.0 } else { 1.0 };
                let copy = cores * CORE_WEIGHTS * dtype.size_in_bytes() as f64;
                Self { flop, copy, overhead: 0.0, overlap: false }
            }
        }
    }

    /// For streaming a network whose segments have so many operations.
    pub(crate) fn estimate(&self, flop: &[f64]) -> Estimate {
        Estimate { seconds: flop.iter().map(|flop| flop / self.flop).collect(), bytes_per_second: self.copy }
    }

    /// Seconds of copying `bytes`.
    pub(super) fn copying(&self, bytes: usize) -> f64 {
        bytes as f64 / self.copy
    }

    /// Seconds of a part of `flop` operations a picture for `n` pictures, for which `bytes` are copied.
    pub(super) fn seconds(&self, flop: f64, n: usize, bytes: usize) -> f64 {
        let (compute, copying) = (flop * (n as f64 + self.overhead) / self.flop, self.copying(bytes));
        if self.overlap { compute.max(copying) } else { compute + copying }
    }
}

#[cfg(test)]
mod tests {
    use kiln_unet::Unet;

    use super::*;
    use crate::bench::{BenchModel, Preset};
    use crate::plan::unet_flop;

    /// The measured times are those of `docs/performance.md`.
    #[test]
    fn a_cards_steps_are_about_as_long_as_measured() {
        let rates = Rates::of(Target::Card, DType::F16);
        let close = |found: f64, measured: f64| assert!((found / measured - 1.0).abs() < 0.15, "{found}, {measured}");
        let unet = Unet::new(BenchModel::preset(Preset::Sd15).unwrap().unet);
        let sd15 = unet_flop(&unet, 2, (64, 64), 77).unwrap().iter().sum();
        close(rates.seconds(sd15, 1, 0), 5.4e-3);
        close(rates.seconds(sd15, 8, 0), 8.0 * 3.9e-3);
    }

    #[test]
    fn copies_hide_on_a_card_and_not_on_the_processor() {
        let card = Rates::of(Target::Card, DType::F16);
        assert_eq!(card.seconds(0.0, 1, 55_000_000_000), 1.0);
        assert_eq!(card.seconds(4.3e14, 1, 1 << 30), 1.5);
        let cores = Rates::of(Target::Processor { threads: 2 }, DType::BF16);
        assert_eq!(cores.seconds(300e9, 1, 4_000_000_000), 2.0);
    }
}
