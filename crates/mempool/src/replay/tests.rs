use super::*;
use crate::trace::{Category, MemoryEvent, Pool};

const MIB: usize = 1 << 20;

/// A trace: sizes to allocate, or, negative, the number of an allocation to free, counted from 1.
fn trace(steps: &[i64]) -> MemoryTrace {
    let mut next = 0;
    let what = |&step: &i64| match u64::try_from(step) {
        Ok(bytes) => {
            next += 1;
            EventKind::Allocated { pool: Pool::Device, id: next, bytes, category: Category::Activations }
        }
        Err(_) => EventKind::Freed { id: step.unsigned_abs() },
    };
    let events = steps.iter().map(what).map(|what| MemoryEvent { nanos: 0, what }).collect();
    MemoryTrace { events, lost: 0 }
}

fn mib(sizes: &[i64]) -> MemoryTrace {
    trace(&sizes.iter().map(|&size| if size > 0 { size * MIB as i64 } else { size }).collect::<Vec<_>>())
}

fn torch(options: TorchOptions) -> ReplayPolicy {
    ReplayPolicy::Torch(options)
}

#[test]
fn all_policies_get_the_same_requests() {
    let trace = mib(&[30, 10, -1, 20, -2, -3, 8, 8]);
    for (name, policy) in ReplayPolicy::all() {
        let replayed = replay(&trace, policy);
        assert_eq!((replayed.allocations, replayed.peak_used), (5, 40 * MIB as u64), "{name}");
        assert!(replayed.ratio() >= 1.0 && replayed.driver_calls >= 1, "{name}: {replayed:?}");
    }
    assert_eq!(replay(&trace, ReplayPolicy::Plain).driver_calls, 8);
    assert_eq!(replay(&trace, ReplayPolicy::Planned).ratio(), 1.0);
    assert_eq!(replay(&trace, ReplayPolicy::Kiln).ratio(), 1.0);
    assert_eq!(replay(&MemoryTrace::default(), ReplayPolicy::Kiln).ratio(), 1.0);
}

#[test]
fn pytorch_segments_have_its_sizes() {
    let reserved = |sizes: &[i64]| replay(&trace(sizes), torch(TorchOptions::default())).peak_reserved / MIB as u64;
    let mib = MIB as i64;
    assert_eq!(reserved(&[1]), 2);
    assert_eq!(reserved(&[mib]), 2, "small up to 1 MiB");
    assert_eq!(reserved(&[mib + 1]), 20, "then segments of 20 MiB");
    assert_eq!(reserved(&[10 * mib]), 10, "and from 10 MiB on segments of their own");
    assert_eq!(reserved(&[10 * mib + 1]), 12, "in whole 2 MiB");
    assert_eq!(reserved(&[5 * mib, 5 * mib, 5 * mib, 5 * mib]), 20, "one segment serves several");
    assert_eq!(reserved(&[mib / 2, mib / 2, mib, -1, -2, mib]), 2, "adjacent blocks are joined");
    // The rest of a large block stays with it where it is 1 MiB or less.
    assert_eq!(reserved(&[20 * mib, -1, 19 * mib, mib + 1]), 40);
    assert_eq!(reserved(&[20 * mib, -1, 18 * mib, mib + 1]), 20);
    // Segments are not joined: two of 30 MiB do not serve 40.
    assert_eq!(reserved(&[30 * mib, 30 * mib, -1, -2, 40 * mib]), 100);
}

#[test]
fn pytorch_options_change_splitting_and_rounding() {
    let split = torch(TorchOptions { max_split: Some(100 * MIB), ..TorchOptions::default() });
    // A block of 200 MiB does not serve 50, nor 150: that would waste more than 20 MiB.
    assert_eq!(replay(&mib(&[200, -1, 50]), split).peak_reserved, 250 * MIB as u64);
    assert_eq!(replay(&mib(&[200, -1, 150]), split).peak_reserved, 350 * MIB as u64);
    assert_eq!(replay(&mib(&[200, -1, 190, 10]), split).peak_reserved, 210 * MIB as u64);
    let rounded = torch(TorchOptions { roundup_power2_divisions: Some(4), ..TorchOptions::default() });
    assert_eq!(replay(&mib(&[70]), rounded).peak_reserved, 80 * MIB as u64);
    assert_eq!(replay(&mib(&[64]), rounded).peak_reserved, 64 * MIB as u64);
}

#[test]
fn first_fit_uses_the_lowest_hole() {
    let replayed = replay(&mib(&[10, 20, 10, -2, 8, 8, 4]), ReplayPolicy::FirstFit);
    assert_eq!(replayed.peak_reserved, 40 * MIB as u64);
}

#[test]
fn random_traces_are_replayed_deterministically() {
    for seed in 1..20u64 {
        let mut number = seed;
        let mut below = |bound: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % bound
        };
        let (mut steps, mut live, mut count) = (Vec::new(), Vec::new(), 0);
        for _ in 0..400 {
            if below(10) < 6 || live.is_empty() {
                count += 1;
                live.push(count);
                let most = 1 << (10 + below(16));
                steps.push(1 + below(most) as i64);
            } else {
                steps.push(-live.swap_remove(below(live.len() as u64) as usize));
            }
        }
        let trace = trace(&steps);
        for (name, policy) in ReplayPolicy::all() {
            let (first, second) = (replay(&trace, policy), replay(&trace, policy));
            assert_eq!(Replayed { time: second.time, ..first }, second, "{name}");
            assert!(first.peak_reserved >= first.peak_used, "{name}: {first:?}");
        }
        let held = |policy| replay(&trace, policy).peak_reserved;
        assert!(held(ReplayPolicy::Kiln) <= held(ReplayPolicy::Torch(TorchOptions::default())), "seed {seed}");
    }
}
