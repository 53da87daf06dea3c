//! Where streamed segments lie in the ring.

use std::ops::Range;

/// The places of segments in a ring of bytes: one after another in running order, from the start again where one does
/// not fit before the end. A segment has the same place in every pass, so its views into the ring are made once; what
/// that leaves unused at the end of a pass is less than a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    spans: Vec<Range<usize>>,
    /// For every segment the others that share bytes with it.
    rivals: Vec<Vec<usize>>,
}

impl Places {
    /// Places segments of `sizes` bytes in a ring of `ring` bytes, which holds the largest.
    pub(crate) fn new(sizes: &[usize], ring: usize) -> Self {
        let mut head = 0;
        let mut spans: Vec<Range<usize>> = Vec::new();
        for &size in sizes {
            let start = if head + size > ring { 0 } else { head };
            head = start + size;
            spans.push(start..head);
        }
        let shares = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let rivals_of = |i: usize| {
            let others = spans.iter().enumerate().filter(|(j, span)| *j != i && shares(span, &spans[i]));
            others.map(|(j, _)| j).collect()
        };
        let rivals = (0..spans.len()).map(rivals_of).collect();
        Self { spans, rivals }
    }

    /// How many segments there are.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The bytes of segment `slot`.
    pub(crate) fn span(&self, slot: usize) -> Range<usize> {
        self.spans[slot].clone()
    }

    /// The segments that cannot be in the ring together with `slot`.
    pub(crate) fn rivals(&self, slot: usize) -> &[usize] {
        &self.rivals[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_one_another_and_start_again_where_one_does_not_fit() {
        let places = Places::new(&[40, 50, 30, 80, 20, 100], 100);
        let spans: Vec<_> = (0..6).map(|slot| places.span(slot)).collect();
        assert_eq!(spans, [0..40, 40..90, 0..30, 0..80, 80..100, 0..100]);
        assert_eq!(places.rivals(1), [3, 4, 5]);
        assert_eq!(places.rivals(2), [0, 3, 5]);
    }
}
