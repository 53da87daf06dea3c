//! The link between host memory and a GPU, which plans of streamed weights depend on.
//!
//! It is measured when a plan streams for the first time on a GPU ([`kiln_ops::stream::LinkSpeed`]), and kept in a file for
//! each GPU (`kept.rs`). A file of another GPU, driver or slot, and one that is damaged, is measured again.

mod kept;

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, DeviceLocation};
use kiln_ops::device::{Gpu, gpu, open_gpu};
use kiln_ops::stream::LinkSpeed;
use serde::Serialize;

use self::kept::GpuIdentity;
use crate::error::Result;
use crate::setup::Setup;

/// How fast memory is copied to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Bytes per second of a large copy from pinned memory.
    pub pinned: f64,
    /// Bytes per second of a large copy from pageable memory.
    pub pageable: f64,
    /// Seconds that each copy takes in addition to its bytes.
    pub seconds_per_copy: f64,
    /// Seconds until computing starts that waits for a copy, and until a copy starts that waits for computing.
    pub seconds_per_wait: f64,
    /// Where the figures come from.
    pub source: LinkSource,
}

/// Where the figures of a [`Link`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkSource {
    /// They were measured now.
    Measured,
    /// They were measured before, and are in a file of the cache folder.
    Kept,
    /// The caller set the rate.
    Given,
    /// They are those of a PCIe 5 link with 16 lanes, because there is no GPU to measure.
    Assumed,
}

/// How the link of a GPU is found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// The rate was measured on this machine before, or is measured now.
    #[default]
    Kept,
    /// It is measured now, and kept.
    Measure,
    /// It has this rate.
    Given(LinkRate),
}

/// The rate of a link in bytes per second, written in units of 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRate(u64);

impl FromStr for LinkRate {
    type Err = String;

    /// Reads GB/s, as `12` or `3.5`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let rate = text.parse::<f64>().ok().map(|rate| rate * 1e9);
        let rate = rate.filter(|rate| kept::RATES.contains(rate));
        rate.map(|rate| Self(rate as u64)).ok_or_else(|| "expected GB/s, from 0.01 to 10000, such as 12".into())
    }
}

/// The least ratio of pinned to pageable copies for which weights are pinned: pinning takes time and memory that other
/// programs cannot use.
const PINNING_PAYS: f64 = 1.05;

/// The part of a link's rate that is expected of pageable memory, if it is not measured: the CPU copies each byte too.
const PAGEABLE: f64 = 0.5;

impl Link {
    /// A PCIe 5 link with 16 lanes. A copy and its two waits take what was lost for each wait on an H200
    /// (`benches/runs/2026-11.md`, "Small memory").
    pub const ASSUMED: Self = Self {
        pinned: 55e9,
        pageable: PAGEABLE * 55e9,
        seconds_per_copy: 5e-6,
        seconds_per_wait: 15e-6,
        source: LinkSource::Assumed,
    };

    /// A link of a given rate.
    pub fn given(LinkRate(rate): LinkRate) -> Self {
        let pinned = rate as f64;
        Self { pinned, pageable: PAGEABLE * pinned, source: LinkSource::Given, ..Self::ASSUMED }
    }

    /// Whether copies from pinned memory are enough faster than others.
    pub fn pinning_pays(&self) -> bool {
        self.pinned >= PINNING_PAYS * self.pageable
    }

    /// Bytes per second of a run's copies; `pins` says whether the run may pin memory.
    pub fn rate(&self, pins: bool) -> f64 {
        if pins && self.pinning_pays() { self.pinned } else { self.pageable }
    }

    /// The link of an open device; `None` for the CPU.
    pub fn of_device(device: &Device, setup: &Setup) -> Option<Self> {
        let DeviceLocation::Cuda { gpu_id } = device.location() else { return None };
        let found = gpu(gpu_id).map(|gpu| Self::find(&gpu, setup, || Ok(LinkSpeed::measure(device)?)));
        Some(found.unwrap_or_else(|error| assumed(&error.into())))
    }

    /// The link of a GPU that need not be open, which is opened if it must be measured. Without a GPU the given rate, else the
    /// assumed one.
    pub fn of_gpu(gpu: Option<&Gpu>, setup: &Setup) -> Self {
        let measure = |gpu: &Gpu| {
            let open = open_gpu(gpu.ordinal)?;
            Ok(LinkSpeed::measure(&open)?)
        };
        match (gpu, setup.link) {
            (_, LinkChoice::Given(rate)) => Self::given(rate),
            (Some(gpu), _) => Self::find(gpu, setup, || measure(gpu)),
            (None, _) => Self::ASSUMED,
        }
    }

    /// The link of a GPU: from this process, from its file, or measured.
    fn find(gpu: &Gpu, setup: &Setup, measure: impl FnOnce() -> Result<LinkSpeed>) -> Self {
        /// Links that this process has found, by GPU.
        static FOUND: Mutex<BTreeMap<String, Link>> = Mutex::new(BTreeMap::new());
        if let LinkChoice::Given(rate) = setup.link {
            return Self::given(rate);
        }
        let identity = GpuIdentity::of(gpu);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if setup.link == LinkChoice::Kept
            && let Some(link) = found.get(&identity.uuid)
        {
            return *link;
        }
        let link = Self::kept_or_measured(&identity, setup.link, setup.cache_dir.as_deref(), measure);
        if link.source != LinkSource::Assumed {
            found.insert(identity.uuid, link);
        }
        link
    }

    /// From the file in `folder`, or measured and kept there. A file that cannot be written costs a message.
    fn kept_or_measured(
        identity: &GpuIdentity,
        choice: LinkChoice,
        folder: Option<&Path>,
        measure: impl FnOnce() -> Result<LinkSpeed>,
    ) -> Self {
        let path = folder.map(|folder| identity.path(folder));
        if choice == LinkChoice::Kept
            && let Some(path) = &path
        {
            match kept::read(path, identity) {
                Ok(Some(speed)) => return Self::of_speed(speed, LinkSource::Kept),
                Ok(None) => {}
                Err(problem) => tracing::info!("{}: {problem}; the link is measured again", path.display()),
            }
        }
        let speed = match measure() {
            Ok(speed) if kept::is_plausible(&speed) => speed,
            Ok(speed) => {
                tracing::warn!("the link to {} was measured as {speed:?}, which cannot be", identity.name);
                return Self::ASSUMED;
            }
            Err(error) => return assumed(&error),
        };
        let written = path.map_or(Ok(()), |path| kept::write(&path, identity, &speed));
        written.unwrap_or_else(|error| tracing::info!("the speed of the link is not kept: {error}"));
        Self::of_speed(speed, LinkSource::Measured)
    }

    fn of_speed(speed: LinkSpeed, source: LinkSource) -> Self {
        let LinkSpeed { pinned, pageable, seconds_per_copy, seconds_per_wait } = speed;
        Self { pinned, pageable, seconds_per_copy, seconds_per_wait, source }
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pinned, pageable, seconds_per_copy, seconds_per_wait, source } = *self;
        let source = match source {
            LinkSource::Measured => "measured now",
            LinkSource::Kept => "measured on this GPU before",
            LinkSource::Given => "as given",
            LinkSource::Assumed => "assumed: PCIe 5 with 16 lanes",
        };
        let [rate, slow] = [pinned, pageable].map(|rate| rate / 1e9);
        let [copy, wait] = [seconds_per_copy, seconds_per_wait].map(|seconds| seconds * 1e6);
        write!(
            f,
            "{rate:.1} GB/s from pinned memory, {slow:.1} from other memory, {copy:.0} µs a copy, {wait:.0} µs a wait ({source})"
        )
    }
}

/// The assumed link, if none can be measured.
fn assumed(error: &crate::error::Error) -> Link {
    tracing::info!("the link to the GPU is not measured: {error}");
    Link::ASSUMED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn identity() -> GpuIdentity {
        let text = |text: &str| text.to_string();
        GpuIdentity { name: text("A GPU"), uuid: text("00ff"), pci: text("0000:01:00"), driver: text("13000") }
    }

    const SPEED: LinkSpeed = LinkSpeed { pinned: 12e9, pageable: 6e9, seconds_per_copy: 4e-6, seconds_per_wait: 12e-6 };

    fn found(folder: Option<&Path>, choice: LinkChoice, speed: Result<LinkSpeed>) -> Link {
        Link::kept_or_measured(&identity(), choice, folder, || speed)
    }

    #[test]
    fn a_link_is_measured_once() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("new");
        let failing = || Err(Error::Device("measured twice".into()));
        let first = found(Some(&below), LinkChoice::Kept, Ok(SPEED));
        assert_eq!((first.pinned, first.source), (12e9, LinkSource::Measured));
        let second = found(Some(&below), LinkChoice::Kept, failing());
        assert_eq!(second, Link { source: LinkSource::Kept, ..first });
        let again = found(Some(&below), LinkChoice::Measure, Ok(LinkSpeed { pinned: 13e9, ..SPEED }));
        assert_eq!((again.pinned, again.source), (13e9, LinkSource::Measured));
        assert_eq!(found(Some(&below), LinkChoice::Kept, failing()).pinned, 13e9);
        assert_eq!(found(None, LinkChoice::Kept, failing()), Link::ASSUMED);
        // Where no file can be written, the figures hold for the run.
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(found(Some(&folder.path().join("file/x")), LinkChoice::Kept, Ok(SPEED)).pinned, 12e9);
        // An impossible figure is neither used nor kept.
        let other = folder.path().join("other");
        assert_eq!(found(Some(&other), LinkChoice::Kept, Ok(LinkSpeed { pinned: 0.0, ..SPEED })), Link::ASSUMED);
        assert!(!other.exists());
    }

    #[test]
    fn rates_are_gigabytes_per_second() {
        let rate: LinkRate = "3.5".parse().unwrap();
        assert_eq!(Link::given(rate).pinned, 3.5e9);
        assert_eq!(Link::given(rate).source, LinkSource::Given);
        for text in ["", "fast", "0", "-3", "NaN", "inf", "20000", "12GB"] {
            assert!(text.parse::<LinkRate>().unwrap_err().contains("such as 12"), "{text}");
        }
    }

    #[test]
    fn memory_is_pinned_where_that_is_faster() {
        let link = Link::of_speed(SPEED, LinkSource::Measured);
        assert_eq!((link.rate(true), link.rate(false)), (12e9, 6e9));
        let slow = Link { pinned: 6.1e9, ..link };
        assert!(!slow.pinning_pays() && slow.rate(true) == 6e9);
    }
}
