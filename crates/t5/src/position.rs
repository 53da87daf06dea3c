//! Relative positions as buckets (Raffel et al., arXiv 1910.10683, section 2.1; transformers, `T5Attention._relative_position_bucket`).

/// The buckets of relative positions in both directions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    /// The number of buckets: one half for keys before the query, the other for keys behind it.
    pub(crate) count: usize,
    /// The distance from which on all positions are in the last bucket.
    pub(crate) max_distance: usize,
}

impl Buckets {
    /// The bucket of a key at `key` for a query at `query`. Small distances have a bucket each; larger ones are on a logarithmic
    /// scale.
    fn bucket(self, query: usize, key: usize) -> usize {
        let half = self.count / 2;
        let exact = half / 2;
        let direction = if key > query { half } else { 0 };
        let distance = key.abs_diff(query);
        if distance < exact {
            return direction + distance;
        }
        // In f32 as in PyTorch, so that the borders are the same.
        let scale = (self.max_distance as f64 / exact as f64).ln() as f32;
        let part = (distance as f32 / exact as f32).ln() / scale * (half - exact) as f32;
        direction + (exact + part as usize).min(half - 1)
    }

    /// The buckets of all pairs of `s` tokens, `(s, s)` with a row for each query.
    pub(crate) fn of_pairs(self, s: usize) -> Vec<u32> {
        (0..s).flat_map(|query| (0..s).map(move |key| self.bucket(query, key) as u32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_positions_have_a_bucket_each_and_far_ones_share() {
        let buckets = Buckets { count: 32, max_distance: 128 };
        let before = |distance: usize| buckets.bucket(1000, 1000 - distance);
        assert_eq!([0, 1, 7, 8, 9, 11, 12, 15].map(before), [0, 1, 7, 8, 8, 8, 9, 9]);
        assert_eq!([16, 22, 23, 31, 32, 64, 90, 91, 128, 300].map(before), [10, 10, 11, 11, 12, 14, 14, 15, 15, 15]);
        assert_eq!([1, 8, 16, 500].map(|distance: usize| buckets.bucket(0, distance)), [17, 24, 26, 31]);
        assert_eq!(buckets.of_pairs(3), [0, 17, 18, 1, 0, 17, 2, 1, 0]);
    }
}
