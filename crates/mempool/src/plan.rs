//! Memory planning: offsets for requests that are all known in advance.
//!
//! A run that always makes the same requests in the same order, like a recorded step, can be planned before it begins:
//! two requests share memory where their lifetimes do not overlap. The optimal plan is a packing problem without a fast
//! solution. The largest request first, each at the lowest offset that is free during its whole lifetime, is within a
//! few percent of the peak for networks (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
//! Inference", 2020). A few orders are tried, and the smallest result is kept.

use std::cmp::Reverse;

/// A request with its lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// The size in bytes.
    pub bytes: usize,
    /// The time of the request. Times are increasing integers.
    pub start: usize,
    /// The time of the free.
    pub end: usize,
}

/// A plan: an offset for every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The offsets, in the order of the lifetimes.
    pub offsets: Vec<usize>,
    /// The total size in bytes.
    pub bytes: usize,
    /// The peak of the bytes in use: no plan is smaller.
    pub least: usize,
}

/// A sort key from size and length of the lifetime.
type Key = fn(usize, usize) -> (usize, usize);

impl Plan {
    /// Plans `lifetimes`, sorted by their starts, at multiples of `alignment` bytes.
    pub fn new(lifetimes: &[Lifetime], alignment: usize) -> Self {
        let size = |life: &Lifetime| life.bytes.max(1).next_multiple_of(alignment.max(1));
        let length = |life: &Lifetime| life.end.saturating_sub(life.start);
        let keys: [Key; 3] = [
            |bytes, length| (bytes, length),
            |bytes, length| (length, bytes),
            |bytes, length| (bytes.saturating_mul(length), bytes),
        ];
        let least = least(lifetimes, size);
        let mut best: Option<Self> = None;
        for key in keys {
            let mut order: Vec<usize> = (0..lifetimes.len()).collect();
            order.sort_by_key(|&i| (Reverse(key(size(&lifetimes[i]), length(&lifetimes[i]))), i));
            let plan = place(lifetimes, &order, size);
            if best.as_ref().is_none_or(|best| plan.bytes < best.bytes) {
                best = Some(plan);
            }
            if best.as_ref().is_some_and(|best| best.bytes == least) {
                break;
            }
        }
        Self { least, ..best.unwrap_or_default() }
    }
}

/// The peak of the bytes in use.
fn least(lifetimes: &[Lifetime], size: impl Fn(&Lifetime) -> usize) -> usize {
    let mut changes: Vec<(usize, isize)> = Vec::with_capacity(2 * lifetimes.len());
    for life in lifetimes {
        changes.extend([(life.start, size(life) as isize), (life.end, -(size(life) as isize))]);
    }
    changes.sort_unstable(); // at the same time, frees come first
    let (mut live, mut most) = (0, 0);
    for (_, change) in changes {
        live += change;
        most = most.max(live);
    }
    most as usize
}

/// Assigns to each request, in `order`, the lowest offset that is free during its lifetime.
fn place(lifetimes: &[Lifetime], order: &[usize], size: impl Fn(&Lifetime) -> usize) -> Plan {
    let mut offsets = vec![0; lifetimes.len()];
    // The requests with offsets, by offset: start, end, index.
    let mut placed: Vec<(usize, usize, usize)> = Vec::with_capacity(order.len());
    let mut bytes = 0;
    for &i in order {
        let (life, mut offset) = (&lifetimes[i], 0);
        for &(start, end, other) in &placed {
            let other = &lifetimes[other];
            if other.end <= life.start || life.end <= other.start {
                continue;
            }
            if start >= offset + size(life) {
                break;
            }
            offset = offset.max(end);
        }
        offsets[i] = offset;
        let end = offset + size(life);
        bytes = bytes.max(end);
        let at = placed.partition_point(|place| *place < (offset, end, i));
        placed.insert(at, (offset, end, i));
    }
    Plan { offsets, bytes, least: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lifetimes: &[Lifetime]) -> Plan {
        let plan = Plan::new(lifetimes, 16);
        for (i, a) in lifetimes.iter().enumerate() {
            assert!(plan.offsets[i].is_multiple_of(16) && plan.offsets[i] + a.bytes <= plan.bytes);
            for (j, b) in lifetimes.iter().enumerate().skip(i + 1) {
                let together = a.start < b.end && b.start < a.end;
                let (x, y) = (plan.offsets[i], plan.offsets[j]);
                assert!(!together || x + a.bytes <= y || y + b.bytes <= x, "{i} and {j} share memory");
            }
        }
        assert!(plan.least <= plan.bytes);
        plan
    }

    #[test]
    fn requests_share_memory_where_their_lifetimes_do_not_overlap() {
        let life = |bytes, start, end| Lifetime { bytes, start, end };
        let plan = check(&[life(100, 0, 2), life(50, 1, 4), life(112, 2, 3)]);
        assert_eq!((plan.bytes, plan.least), (112 + 64, 112 + 64));
        assert_eq!(plan.offsets[0], plan.offsets[2]);
        assert_eq!(check(&[]), Plan::default());
    }

    #[test]
    fn random_plans_never_overlap() {
        for seed in 0..60u64 {
            let mut number = seed;
            let mut below = |bound: usize| {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (number >> 33) as usize % bound
            };
            let count = below(80);
            let mut lifetimes: Vec<Lifetime> = (0..count)
                .map(|_| {
                    let start = below(100);
                    Lifetime { bytes: below(2000), start, end: start + 1 + below(30) }
                })
                .collect();
            lifetimes.sort_by_key(|life| life.start);
            let plan = check(&lifetimes);
            assert!(plan.bytes <= 2 * plan.least, "{} of {}", plan.bytes, plan.least);
            assert_eq!(plan, Plan::new(&lifetimes, 16), "the same every time");
        }
    }

    #[test]
    fn a_plan_for_a_network_is_close_to_the_peak() {
        // A chain of layers, each with a result, a buffer, and sometimes a skip connection with a long lifetime.
        let (mut lifetimes, mut number) = (Vec::new(), 12_345u64);
        for i in 0..300usize {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 1 + (number >> 33) as usize % 10_000;
            lifetimes.push(Lifetime { bytes, start: 3 * i, end: 3 * i + 6 });
            lifetimes.push(Lifetime { bytes: bytes / 2 + 1, start: 3 * i + 1, end: 3 * i + 2 });
            if i % 25 == 0 {
                lifetimes.push(Lifetime { bytes, start: 3 * i + 2, end: 3 * (i + 100) });
            }
        }
        let plan = check(&lifetimes);
        assert!(plan.bytes as f64 <= 1.1 * plan.least as f64, "{} of {}", plan.bytes, plan.least);
    }
}
