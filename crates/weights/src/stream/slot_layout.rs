//! The layout of streamed segments in the ring.

use std::ops::Range;

use crate::param_spec::ALIGNMENT;

/// The slots of segments in a ring of bytes. They follow each other in running order, and wrap to the start if one does
/// not fit before the end. A segment has the same slot in every pass, so its views into the ring are created once. The
/// unused bytes at the end of a pass are fewer than a segment.
///
/// A segment is copied in pieces, so that the first bytes of a large one are copied while segments before it still use the
/// bytes for its last ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotLayout {
    spans: Vec<Range<usize>>,
    pieces: Vec<Piece>,
    /// The pieces of each segment.
    of: Vec<Range<usize>>,
}

/// A part of a segment that is copied at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its segment.
    pub(crate) slot: usize,
    /// Its bytes in the ring.
    pub(crate) span: Range<usize>,
}

impl SlotLayout {
    /// Lays out segments of `sizes` bytes in a ring of `ring` bytes, which has room for the largest. They are copied in about
    /// equal pieces of at most about `piece` bytes.
    pub(crate) fn new(sizes: &[usize], ring: usize, piece: usize) -> Self {
        let mut head = 0;
        let (mut spans, mut pieces, mut of): (Vec<Range<usize>>, Vec<Piece>, Vec<Range<usize>>) = Default::default();
        for (slot, &size) in sizes.iter().enumerate() {
            let start = if head + size > ring { 0 } else { head };
            head = start + size;
            let len = size.div_ceil(size.div_ceil(piece.max(1)).max(1)).next_multiple_of(ALIGNMENT).max(1);
            let first = pieces.len();
            let starts = (start..head.max(start + 1)).step_by(len);
            pieces.extend(starts.map(|at| Piece { slot, span: at..(at + len).min(head) }));
            of.push(first..pieces.len());
            spans.push(start..head);
        }
        Self { spans, pieces, of }
    }

    /// The number of segments.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The bytes of segment `slot`.
    pub(crate) fn span(&self, slot: usize) -> Range<usize> {
        self.spans[slot].clone()
    }

    /// All pieces, in running order.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces of segment `slot`.
    pub(crate) fn pieces_of(&self, slot: usize) -> Range<usize> {
        self.of[slot].clone()
    }

    /// Whether two pieces share bytes.
    pub(crate) fn overlap(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|piece| &self.pieces[piece].span);
        one.start < other.end && other.start < one.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_consecutive_and_wrap_where_one_does_not_fit() {
        let places = SlotLayout::new(&[40, 50, 30, 80, 20, 100], 100, usize::MAX);
        let spans: Vec<_> = (0..6).map(|slot| places.span(slot)).collect();
        assert_eq!(spans, [0..40, 40..90, 0..30, 0..80, 80..100, 0..100]);
        assert_eq!(places.pieces().len(), 6);
        let rivals: Vec<usize> = (0..6).filter(|&other| other != 1 && places.overlap(1, other)).collect();
        assert_eq!(rivals, [3, 4, 5]);
    }

    #[test]
    fn pieces_are_even_and_aligned() {
        let (sizes, piece) = ([10 * ALIGNMENT, ALIGNMENT, 7 * ALIGNMENT], 4 * ALIGNMENT);
        let places = SlotLayout::new(&sizes, 20 * ALIGNMENT, piece);
        for (slot, &size) in sizes.iter().enumerate() {
            let pieces = &places.pieces()[places.pieces_of(slot)];
            let spans: Vec<_> = pieces.iter().map(|piece| piece.span.clone()).collect();
            assert_eq!((spans[0].start, spans[spans.len() - 1].end), (places.span(slot).start, places.span(slot).end));
            assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start), "{spans:?}");
            assert!(spans.iter().all(|span| span.len() <= piece && span.start % ALIGNMENT == 0), "{spans:?}");
            assert_eq!(spans.len(), size.div_ceil(piece));
        }
    }
}
