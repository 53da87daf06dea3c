//! The layout of streamed segments in the ring.

use std::ops::Range;

/// The slots of segments in a ring of bytes. They follow each other in running order, and wrap to the start where one
/// does not fit before the end. A segment has the same slot in every pass, so its views into the ring are created once.
/// The unused bytes at the end of a pass are fewer than a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotLayout {
    spans: Vec<Range<usize>>,
    /// For every segment, the others that share bytes with it.
    conflicts: Vec<Vec<usize>>,
}

impl SlotLayout {
    /// Lays out segments of `sizes` bytes in a ring of `ring` bytes, which has room for the largest.
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
        let conflicts = (0..spans.len()).map(rivals_of).collect();
        Self { spans, conflicts }
    }

    /// The number of segments.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The bytes of segment `slot`.
    pub(crate) fn span(&self, slot: usize) -> Range<usize> {
        self.spans[slot].clone()
    }

    /// The segments that cannot be in the ring together with `slot`.
    pub(crate) fn conflicts(&self, slot: usize) -> &[usize] {
        &self.conflicts[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_consecutive_and_wrap_where_one_does_not_fit() {
        let places = SlotLayout::new(&[40, 50, 30, 80, 20, 100], 100);
        let spans: Vec<_> = (0..6).map(|slot| places.span(slot)).collect();
        assert_eq!(spans, [0..40, 40..90, 0..30, 0..80, 80..100, 0..100]);
        assert_eq!(places.conflicts(1), [3, 4, 5]);
        assert_eq!(places.conflicts(2), [0, 3, 5]);
    }
}
