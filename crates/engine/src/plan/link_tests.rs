//! What plans of streamed weights hide on links of all speeds, by simulated steps: the plan uses the same simulation.

use candle_core::{DType, Device};
use kiln_models::{Architecture, Preset};
use kiln_network::Denoiser;
use kiln_ops::Target;
use kiln_weights::{Estimate, Placement, Residency};

use super::{ExecutionTarget, denoiser_flop};
use crate::residency::{StreamBudget, residency};
use kiln_setup::Link;

const MIB: usize = 1 << 20;
/// GB/s of links, from a laptop's to PCIe 5 with 16 lanes.
const LINKS: [&str; 5] = ["3", "6", "12", "25", "55"];
/// Operations per second of a laptop's GPU, and of an H200.
const LAPTOP: f64 = 1e13;
const H200: f64 = 4.3e14;
/// The part of the shorter of copying and computing that must overlap.
const HIDDEN: f64 = 0.9;

/// A U-Net in f16 and the operations of a guided step.
struct Network {
    unet: Box<dyn Denoiser>,
    flop: Vec<f64>,
    placement: Placement,
}

impl Network {
    fn new(preset: Preset) -> Self {
        let model = Architecture::preset(preset).unwrap();
        let unet = model.denoiser();
        let flop = denoiser_flop(&*unet, 2, model.latent_size(), 77).unwrap();
        Self { unet, flop, placement: Placement::new(Device::Cpu, DType::F16) }
    }

    fn estimate(&self, link: &str, flop: f64) -> Estimate {
        let link = Link::given(link.parse().unwrap());
        let mut on = ExecutionTarget::new(Target::Gpu, DType::F16).with_link(Some(link), true);
        on.rates.flop = flop;
        on.rates.estimate(&self.flop)
    }

    fn residency(&self, share: StreamBudget, estimate: &Estimate) -> Residency {
        residency(self.unet.segments(), &self.placement, share, estimate).unwrap()
    }

    /// The shortest step that a search finds which exchanges segments at random, with a ring of the memory that they leave.
    fn searched(&self, from: &Residency, estimate: &Estimate) -> f64 {
        let sizes: Vec<usize> = self.unet.segments().iter().map(|s| s.bytes(self.placement.slab())).collect();
        let (total, mut random) = (from.device_bytes(), 1u64);
        let mut next = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        let mut best: Vec<bool> = (0..sizes.len()).map(|i| from.is_resident(i)).collect();
        let mut least = from.simulate(estimate).seconds;
        for _ in 0..200 {
            let mut set = best.clone();
            for _ in 0..1 + next(4) {
                let i = next(sizes.len());
                set[i] = !set[i];
            }
            let resident: usize = sizes.iter().zip(&set).filter(|(_, stays)| **stays).map(|(size, _)| size).sum();
            let ring = total.saturating_sub(resident) / 256 * 256;
            let Ok(other) = Residency::chosen(self.unet.segments(), &self.placement, ring, |i| set[i]) else {
                continue;
            };
            let seconds = other.simulate(estimate).seconds;
            if seconds < least {
                (least, best) = (seconds, set);
            }
        }
        least
    }
}

/// Without resident segments, as with `--lowvram`, on an H200 and on any link.
#[test]
fn the_smallest_ring_hides_what_can_hide() {
    for preset in [Preset::Sd15, Preset::Sdxl] {
        let network = Network::new(preset);
        let bytes = network.unet.segments().bytes(network.placement.slab());
        for link in LINKS {
            let estimate = network.estimate(link, H200);
            let found = network.residency(StreamBudget::LEAST, &estimate);
            let step = found.simulate(&estimate);
            assert!(step.overlap() >= HIDDEN, "{preset:?} at {link} GB/s: {step:?}");
            assert!(found.resident_bytes() == 0 && found.ring_bytes() < bytes / 8, "{preset:?} at {link} GB/s");
        }
    }
}

/// SDXL on a laptop's GPU with 4 GB, of which 1.5 are taken by the system, libraries and activations.
#[test]
fn a_laptop_with_4_gigabytes_hides_what_can_hide() {
    let network = Network::new(Preset::Sdxl);
    for link in LINKS {
        let estimate = network.estimate(link, LAPTOP);
        let room = 2500 * 1000 * 1000;
        let found = network.residency(StreamBudget { resident: usize::MAX, room }, &estimate);
        let step = found.simulate(&estimate);
        assert!(found.device_bytes() <= room && found.resident_bytes() > room / 2, "{link} GB/s");
        assert!(step.overlap() >= HIDDEN, "{link} GB/s: {step:?}");
    }
}

/// With any memory, link and GPU, the choice hides nearly all that can hide, or no choice that a search finds is much faster:
/// where most computing belongs to few bytes, or where copying more bytes would only hide more of them, more cannot hide.
#[test]
fn no_other_choice_is_much_faster() {
    for (preset, flop) in [(Preset::Sd15, LAPTOP), (Preset::Sd15, H200), (Preset::Sdxl, LAPTOP), (Preset::Sdxl, H200)] {
        let network = Network::new(preset);
        for (link, mib) in LINKS.into_iter().flat_map(|link| [300, 600, 1200, 2400].map(|mib| (link, mib))) {
            let estimate = network.estimate(link, flop);
            let share = StreamBudget { resident: usize::MAX, room: mib * MIB };
            let found = network.residency(share, &estimate);
            let step = found.simulate(&estimate);
            if step.overlap() < HIDDEN {
                let ratio = step.seconds / network.searched(&found, &estimate);
                assert!(ratio < 1.02, "{preset:?} at {link} GB/s in {mib} MiB: {ratio} of the best, {step:?}");
            }
        }
    }
}

/// The choice follows the link: a faster one hides copies that a slower one does not, so that less has to stay.
#[test]
fn a_faster_link_makes_no_step_slower() {
    let network = Network::new(Preset::Sdxl);
    let seconds = LINKS.map(|link| {
        let estimate = network.estimate(link, LAPTOP);
        let share = StreamBudget { resident: usize::MAX, room: 1000 * MIB };
        network.residency(share, &estimate).simulate(&estimate).seconds
    });
    assert!(seconds.windows(2).all(|pair| pair[1] <= 1.005 * pair[0]), "{seconds:?}");
}
