//! Whether there is memory for the next images.

use std::time::{Duration, Instant};

use kiln_engine::{ByteSize, MemoryNeed};
use parking_lot::Mutex;

/// How long a reading holds.
const HOLDS: Duration = Duration::from_secs(1);
/// Host memory that requests need besides images: bodies, decoded images, files.
const LEAST_HOST: u64 = 32 << 20;
/// Once memory was short, so much more than is needed has to be available: a part of it, and bytes.
const MORE_PART: u64 = 8;
const MORE_BYTES: u64 = 64 << 20;

/// The memory of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// `host` or `gpu`.
    pub(crate) of: &'static str,
    /// Bytes that are available.
    pub(crate) available: u64,
    /// Bytes that the next images need besides what is held for them.
    pub(crate) needed: u64,
}

/// The memory of all devices at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    /// Of each device that has a model, the one with the most left first.
    pub(crate) readings: Vec<Reading>,
    /// Whether no device has memory for the next images.
    pub(crate) is_low: bool,
}

/// Watches memory. What was short is enough only if there is some more than is needed, so that the answer does not change with
/// every request.
#[derive(Default)]
pub(crate) struct MemoryWatch(Mutex<Option<(Instant, Pressure)>>);

impl MemoryWatch {
    /// The pressure now, or that of less than a second ago. `needs` has the needs of all devices.
    pub(crate) fn look(&self, needs: impl FnOnce() -> Vec<MemoryNeed>) -> Pressure {
        let mut last = self.0.lock();
        if let Some((_, pressure)) = last.as_ref().filter(|(when, _)| when.elapsed() < HOLDS) {
            return pressure.clone();
        }
        let reading = |need: &MemoryNeed| {
            let of = if need.is_of_gpu() { "gpu" } else { "host" };
            let least = if need.is_of_gpu() { 0 } else { LEAST_HOST };
            Some(Reading { of, available: need.available()?, needed: need.bytes().max(least) })
        };
        let was_low = last.as_ref().is_some_and(|(_, pressure)| pressure.is_low);
        let pressure = Pressure::of(needs().iter().filter_map(reading).collect(), was_low);
        if pressure.is_low != was_low {
            tracing::warn!("{}", pressure.reason().unwrap_or("there is memory for the next images again".into()));
        }
        *last = Some((Instant::now(), pressure.clone()));
        pressure
    }
}

impl Pressure {
    /// The pressure of these readings, if it was low before or not.
    fn of(mut readings: Vec<Reading>, was_low: bool) -> Self {
        readings.sort_by_key(|reading| std::cmp::Reverse(i128::from(reading.available) - i128::from(reading.needed)));
        let is_short = |Reading { available, needed, .. }: &Reading| {
            let more = if was_low { needed / MORE_PART + MORE_BYTES } else { 0 };
            *available < needed.saturating_add(more)
        };
        let is_low = !readings.is_empty() && readings.iter().all(is_short);
        Self { readings, is_low }
    }

    /// Why the server is not ready, if memory is low.
    pub(crate) fn reason(&self) -> Option<String> {
        let Reading { of, available, needed } = self.readings.first().filter(|_| self.is_low)?;
        let whose = if *of == "gpu" { "the GPU" } else { "the host" };
        let [available, needed] =
            [available, needed].map(|bytes| ByteSize(usize::try_from(*bytes).unwrap_or(usize::MAX)));
        Some(format!("not enough memory: {available} of {whose} are available, and the next images need {needed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reading(of: &'static str, available: u64, needed: u64) -> Reading {
        Reading { of, available: available * MIB, needed: needed * MIB }
    }

    #[test]
    fn memory_that_was_short_needs_some_more() {
        let is_low = |available, was_low| Pressure::of(vec![reading("host", available, 800)], was_low).is_low;
        assert!(!is_low(800, false) && is_low(799, false));
        // 800 MiB, an eighth of them and 64 MiB.
        assert!(is_low(963, true) && !is_low(964, true));
        assert_eq!(Pressure::of(Vec::new(), true), Pressure::default(), "nothing is known");
    }

    #[test]
    fn one_device_with_memory_is_enough() {
        let pressure = Pressure::of(vec![reading("gpu", 1, 2), reading("gpu", 4, 2)], false);
        assert_eq!((pressure.is_low, pressure.readings[0].available, pressure.reason()), (false, 4 * MIB, None));
        let pressure = Pressure::of(vec![reading("gpu", 1, 2000), reading("gpu", 1024, 2048)], false);
        let reason = pressure.reason().unwrap();
        assert_eq!(reason, "not enough memory: 1.00 GiB of the GPU are available, and the next images need 2.00 GiB");
    }

    #[test]
    fn a_reading_holds_for_a_moment() {
        let watch = MemoryWatch::default();
        assert_eq!(watch.look(Vec::new), Pressure::default());
        assert_eq!(watch.look(|| panic!("it is too early")), Pressure::default());
    }
}
