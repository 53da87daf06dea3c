use std::collections::BTreeMap;

use super::*;

const POLICY: Policy = Policy { granule: 16, divisions: 8, split: 32 };

/// Pseudorandom numbers, the same in every run: the 64-bit linear congruential generator of Knuth's MMIX.
struct Trace(u64);

impl Trace {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

impl<const N: usize> Arena<N> {
    /// Checks all invariants between two calls. `added` is the address space, `live` the allocated blocks.
    fn check(&self, added: &[Range<usize>], live: &BTreeMap<usize, usize>) {
        for pair in self.table().windows(2) {
            assert!(pair[0].end() <= pair[1].start, "blocks overlap: {pair:?}");
            let both_free = pair[0].dirty().is_some() && pair[1].dirty().is_some();
            assert!(!both_free || pair[0].end() < pair[1].start, "free neighbors were not joined: {pair:?}");
        }
        let all: usize = self.table().iter().map(|block| block.size).sum();
        assert_eq!(all, added.iter().map(Range::len).sum::<usize>(), "bytes were lost or duplicated");
        for block in self.table() {
            assert!(block.size > 0 && block.dirty().is_none_or(|dirty| dirty <= block.size), "{block:?}");
            // Address space has a granularity of 4096 bytes, and so do its gaps.
            let mut samples = (block.start..block.end()).step_by(4096).chain([block.end() - 1]);
            let inside = samples.all(|byte| added.iter().any(|range| range.contains(&byte)));
            assert!(inside, "{block:?} is outside of the address space");
        }
        let used: BTreeMap<usize, usize> = self
            .table()
            .iter()
            .filter(|block| block.state == State::Used)
            .map(|block| (block.start, block.size))
            .collect();
        assert_eq!(&used, live);
        let statistics = self.statistics();
        let waiting = |block: &Block| block.dirty().unwrap_or(0);
        assert_eq!(statistics.used, used.values().sum::<usize>());
        assert_eq!(statistics.unused(), self.table().iter().map(waiting).sum::<usize>());
        assert_eq!(statistics.largest_unused, self.table().iter().map(waiting).max().unwrap_or(0));
        assert!(statistics.used <= statistics.peak_used && statistics.reserved <= statistics.peak_reserved);
        assert!(statistics.peak_used <= statistics.peak_reserved && statistics.reserved <= all);
        assert!((0.0..=1.0).contains(&statistics.reuse_rate()) && (0.0..1.0).contains(&statistics.fragmentation()));
    }
}

/// A random sequence of `calls` calls, checked after each. `memory` stands for the memory of the arena, a byte for each
/// address, which is set when it is allocated.
fn run<const N: usize>(seed: u64, calls: usize, largest: usize) -> Statistics {
    let mut trace = Trace(seed);
    let mut arena = Arena::<N>::new();
    let mut added = Vec::new();
    let mut live: BTreeMap<usize, usize> = BTreeMap::new();
    let mut memory = vec![false; 1 << 20];
    let mut top = memory.len();
    for _ in 0..calls {
        let pick = |trace: &mut Trace| live.keys().nth(trace.below(live.len().max(1))).copied();
        match trace.below(100) {
            0..45 => {
                let bytes = 1 + trace.below(largest);
                let got = arena.allocate(&POLICY, bytes).or_else(|| {
                    let size = (POLICY.class(bytes)?).next_multiple_of(4096);
                    let gap = 4096 * (trace.below(3) / 2); // sometimes the new space is not adjacent
                    let end = top.checked_sub(gap)?;
                    let start = end.checked_sub(size)?;
                    if arena.add(start..end) {
                        added.push(start..end);
                        top = start;
                    }
                    arena.allocate(&POLICY, bytes)
                });
                let Some(Allocation { addresses, untouched }) = got else { continue };
                assert!(addresses.len() >= bytes && addresses.start.is_multiple_of(16));
                assert!(addresses.len() < POLICY.class(bytes).unwrap() + POLICY.split);
                assert!(addresses.start <= untouched && untouched <= addresses.end);
                assert!(
                    !memory[addresses.start..untouched].contains(&true),
                    "touched memory was reported as untouched"
                );
                memory[addresses.clone()].fill(true);
                live.insert(addresses.start, addresses.len());
            }
            45..80 => {
                let Some(start) = pick(&mut trace) else { continue };
                assert!(arena.owns(start) && arena.free(start));
                assert!(!arena.owns(start) && !arena.free(start));
                live.remove(&start);
            }
            80..98 => {
                let Some(start) = pick(&mut trace) else { continue };
                let bytes = 1 + trace.below(largest);
                let before = live[&start];
                let resized = arena.resize(&POLICY, start, bytes);
                let now = arena.table()[arena.find(start).unwrap()].size;
                assert!(if resized { now >= bytes } else { now == before && now < bytes });
                memory[start..start + now].fill(true);
                live.insert(start, now);
            }
            _ => {
                if let Some(addresses) = arena.take_unused() {
                    assert!(arena.put_back(addresses.start, false)); // the system did not release it
                }
                while let Some(addresses) = arena.take_unused() {
                    memory[addresses.clone()].fill(false);
                    assert!(arena.put_back(addresses.start, true));
                }
                let statistics = arena.statistics();
                assert_eq!((statistics.unused(), statistics.reserved), (0, statistics.used));
            }
        }
        arena.check(&added, &live);
    }
    for start in std::mem::take(&mut live).into_keys() {
        assert!(arena.free(start));
        arena.check(
            &added,
            &arena.table().iter().filter(|b| b.state == State::Used).map(|b| (b.start, b.size)).collect(),
        );
    }
    assert_eq!(arena.statistics().used, 0);
    let gaps = added.iter().filter(|range| !added.iter().any(|other| other.end == range.start)).count();
    assert_eq!(arena.len, gaps, "adjacent blocks are joined when all are free");
    arena.statistics()
}

#[test]
fn random_traces_keep_all_invariants() {
    for seed in 0..40 {
        run::<512>(seed, 1500, 300 + 500 * seed as usize);
    }
}

#[test]
fn a_full_table_refuses_and_stays_consistent() {
    for seed in 0..40 {
        run::<7>(seed, 1500, 4000);
    }
}

#[test]
fn the_second_run_of_a_step_needs_no_new_memory() {
    let sizes = [5000, 64, 900, 40_000, 333, 5000, 12_345, 64];
    let mut arena = Arena::<64>::new();
    assert!(arena.add(0..1 << 20));
    let mut step = || {
        let mut last = None;
        for bytes in sizes {
            let next = arena.allocate(&POLICY, bytes).unwrap().addresses.start;
            last.replace(next).map(|last| arena.free(last));
        }
        last.map(|last| arena.free(last));
        arena.statistics()
    };
    let first = step();
    let second = step();
    assert_eq!(second.reserved, first.reserved);
    assert_eq!(second.reused - first.reused, sizes.len() as u64);
    assert!(first.peak_reserved <= first.peak_used + first.peak_used / 8, "{first:?}");
}

#[test]
fn touched_memory_is_used_before_untouched() {
    let mut arena = Arena::<64>::new();
    assert!(arena.add(0..4096));
    let big = arena.allocate(&POLICY, 2048).unwrap();
    let wall = arena.allocate(&POLICY, 64).unwrap();
    assert_eq!((big.addresses.clone(), big.untouched), (2048..4096, 4096));
    assert!(arena.free(big.addresses.start));
    // The untouched block below `wall` fits better, but would use new memory.
    let small = arena.allocate(&POLICY, 1024).unwrap();
    assert_eq!((small.addresses.clone(), small.untouched), (3072..4096, 3072));
    assert!(arena.free(wall.addresses.start) && arena.free(small.addresses.start));
    assert_eq!(arena.statistics().reserved, 2048 + 64);
}

#[test]
fn overlapping_address_space_is_refused() {
    let mut arena = Arena::<8>::new();
    assert!(arena.add(100..200));
    for overlap in [100..200, 50..101, 199..300, 120..130, 0..1000, 7..7] {
        assert!(!arena.add(overlap));
    }
    assert!(arena.add(200..300) && arena.add(50..100));
    assert_eq!((arena.len, arena.lowest()), (1, Some(50)));
}
