//! The policy of a pool: size classes, splitting and alignment.

/// The parameters of a pool, one set for each kind of memory.
///
/// Sizes are rounded up to size *classes*, so that blocks of similar sizes serve each other's requests. Between a power
/// of two and the next there are [`Policy::divisions`] classes, evenly spaced. Rounding wastes at most one part in
/// `divisions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// All sizes are multiples of this many bytes, a power of two: a page, or the alignment of a copy engine.
    pub granule: usize,
    /// Classes between a power of two and the next, itself a power of two.
    pub divisions: usize,
    /// A block is split where the rest would have at least this many bytes; a smaller rest stays with the request.
    pub split: usize,
}

impl Policy {
    /// The size of the block for a request of `bytes`. `None` if it exceeds the address space.
    pub const fn class(&self, bytes: usize) -> Option<usize> {
        let bytes = if bytes == 0 { 1 } else { bytes };
        let step = match (bytes - 1).checked_ilog2() {
            // Classes above 2^n are 2^n / divisions apart.
            Some(n) if (1 << n) / self.divisions > self.granule => (1 << n) / self.divisions,
            _ => self.granule,
        };
        match bytes.checked_next_multiple_of(step) {
            Some(size) if size <= isize::MAX as usize => Some(size),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { granule: 4096, divisions: 8, split: 4096 };

    #[test]
    fn powers_of_two_and_their_divisions_are_classes() {
        for n in 16..40 {
            let start = 1usize << n;
            for i in 0..8 {
                let class = start + start / 8 * i;
                assert_eq!(POLICY.class(class), Some(class));
                assert_eq!(POLICY.class(class + 1), Some(class + start / 8));
            }
        }
    }

    #[test]
    fn small_sizes_are_multiples_of_the_granule() {
        assert_eq!([0, 1, 4096, 4097, 20_000].map(|bytes| POLICY.class(bytes).unwrap() / 4096), [1, 1, 1, 2, 5]);
    }

    #[test]
    fn a_size_beyond_the_address_space_has_no_class() {
        assert_eq!(POLICY.class(usize::MAX), None);
        assert_eq!(POLICY.class(isize::MAX as usize), None);
    }
}
