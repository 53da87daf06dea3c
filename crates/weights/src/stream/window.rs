//! The rules for which segments are in the ring, and which bytes are copied next, without any memory.
//!
//! Copies run ahead in running order, cyclically, as far as the ring has room. They overwrite segments that were used,
//! never one that is in use or still to be used. A pass that stops in the middle, or that runs segments in another
//! order, is correct as well: entering a segment that is not in the ring restarts the copies from it, which is counted
//! and costs time. The rings of the CPU and of GPUs and the simulation use these rules.

use std::ops::Range;

use super::slot_layout::SlotLayout;

/// The content of a piece's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Another segment, or nothing.
    Absent,
    /// Its weights, or a copy in flight, not used yet.
    Ahead,
    /// Its weights, in use or after their use.
    Used,
}

/// The ring's content.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    places: SlotLayout,
    /// The state of each piece.
    states: Vec<State>,
    /// The pieces that are in the ring.
    present: Vec<usize>,
    /// The uses of each segment that are in progress.
    uses: Vec<usize>,
    /// The piece whose copy is next.
    next: usize,
    resets: u64,
}

/// A copy that may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// The segment.
    pub(crate) slot: usize,
    /// The bytes of the segment that are copied.
    pub(crate) bytes: Range<usize>,
    /// The segments whose bytes it overwrites.
    pub(crate) evicted: Vec<usize>,
}

/// Whether a segment can be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Its weights are there or in flight.
    Ready,
    /// Copies of it are missing: start the copies that [`Window::next`] returns, then enter again.
    Missing,
    /// Its slot is in use by this other segment.
    Busy(usize),
}

impl Window {
    /// An empty ring.
    pub(crate) fn new(places: SlotLayout) -> Self {
        let (pieces, slots) = (places.pieces().len(), places.len());
        let states = vec![State::Absent; pieces];
        Self { places, states, present: Vec::new(), uses: vec![0; slots], next: 0, resets: 0 }
    }

    /// The layout of the slots.
    pub(crate) fn places(&self) -> &SlotLayout {
        &self.places
    }

    /// The number of times that copies restarted because segments ran in another order.
    pub(crate) fn resets(&self) -> u64 {
        self.resets
    }

    /// The next copy that has room, which counts as started. `None` if there is none at present.
    pub(crate) fn next(&mut self) -> Option<Start> {
        loop {
            let piece = self.next;
            let slot = self.places.pieces().get(piece)?.slot;
            match self.states[piece] {
                _ if self.uses[slot] > 0 => return None, // the ring contains a whole pass
                State::Ahead => return None,
                State::Used => {
                    self.advance(piece); // still in the ring from the last pass
                    continue;
                }
                State::Absent => {}
            }
            let mut evicted = Vec::new();
            for &rival in self.rivals(piece) {
                let of = self.places.pieces()[rival].slot;
                if self.states[rival] == State::Ahead || self.uses[of] > 0 {
                    return None;
                }
                if evicted.last() != Some(&of) {
                    evicted.push(of);
                }
            }
            self.evict(piece);
            self.present.push(piece);
            self.advance(piece);
            let (start, span) = (self.places.span(slot).start, &self.places.pieces()[piece].span);
            return Some(Start { slot, bytes: span.start - start..span.end - start, evicted });
        }
    }

    /// The pieces in the ring that share bytes with a piece that is not.
    fn rivals(&self, piece: usize) -> impl Iterator<Item = &usize> {
        self.present.iter().filter(move |&&other| self.places.overlap(piece, other))
    }

    /// Removes the pieces that share bytes with a piece.
    fn evict(&mut self, piece: usize) {
        let Self { places, states, present, .. } = self;
        present.retain(|&other| {
            let stays = !places.overlap(piece, other);
            if !stays {
                states[other] = State::Absent;
            }
            stays
        });
    }

    fn advance(&mut self, piece: usize) {
        self.states[piece] = State::Ahead;
        self.next = (piece + 1) % self.states.len();
    }

    /// Enters a segment.
    pub(crate) fn enter(&mut self, slot: usize) -> Entry {
        let pieces = self.places.pieces_of(slot);
        if self.uses[slot] > 0 {
            self.uses[slot] += 1;
            return Entry::Ready;
        }
        let missing: Vec<usize> = pieces.clone().filter(|&piece| self.states[piece] == State::Absent).collect();
        for &piece in &missing {
            let mut of = self.rivals(piece).map(|&rival| self.places.pieces()[rival].slot);
            if let Some(busy) = of.find(|&of| self.uses[of] > 0) {
                return Entry::Busy(busy);
            }
        }
        let Some(&first) = missing.first() else {
            if self.states[pieces.clone()].contains(&State::Ahead) {
                self.skip_before(pieces.clone());
            }
            for piece in pieces {
                self.states[piece] = State::Used;
            }
            self.uses[slot] = 1;
            return Entry::Ready;
        };
        if first == self.next && first != pieces.start {
            // Its first pieces are there, and what is before it was skipped.
            self.skip_before(pieces);
            return Entry::Missing;
        }
        for state in &mut self.states {
            if *state == State::Ahead {
                *state = State::Used;
            }
        }
        self.next = pieces.start;
        self.resets += 1;
        Entry::Missing
    }

    /// Marks the copies as used that were started before those of a segment with these pieces: they must not keep their
    /// slots.
    fn skip_before(&mut self, pieces: Range<usize>) {
        let n = self.states.len();
        let age = |piece: usize| (self.next + n - piece - 1) % n; // copies that were started after its own
        let this = age(pieces.start);
        for &other in &self.present {
            if age(other) > this && self.states[other] == State::Ahead {
                self.states[other] = State::Used;
            }
        }
    }

    /// Leaves a segment that was entered.
    pub(crate) fn leave(&mut self, slot: usize) {
        self.uses[slot] = self.uses[slot].saturating_sub(1);
    }

    /// Whether a segment was used, is no longer in use, and is still in the ring.
    pub(crate) fn is_used(&self, slot: usize) -> bool {
        self.uses[slot] == 0 && self.places.pieces_of(slot).all(|piece| self.states[piece] == State::Used)
    }

    /// Marks a segment's slot as empty after its copy failed.
    pub(crate) fn forget(&mut self, slot: usize) {
        let pieces = self.places.pieces_of(slot);
        self.uses[slot] = 0;
        self.states[pieces.clone()].fill(State::Absent);
        self.present.retain(|piece| !pieces.contains(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param_spec::ALIGNMENT;

    fn window(sizes: &[usize], ring: usize) -> Window {
        Window::new(SlotLayout::new(sizes, ring, usize::MAX))
    }

    /// Starts all copies that have room, and returns their segments.
    fn pump(window: &mut Window) -> Vec<usize> {
        std::iter::from_fn(|| window.next()).map(|start| start.slot).collect()
    }

    fn run(window: &mut Window, slot: usize) -> Vec<usize> {
        assert_eq!(window.enter(slot), Entry::Ready);
        window.leave(slot);
        pump(window)
    }

    #[test]
    fn copies_run_ahead_until_the_ring_is_full_and_on_into_the_next_pass() {
        let mut window = window(&[40, 40, 40, 40], 100);
        assert_eq!(pump(&mut window), [0, 1]);
        assert_eq!(window.enter(0), Entry::Ready);
        assert_eq!(pump(&mut window), [0; 0], "its bytes are in use");
        window.leave(0);
        assert_eq!(window.next(), Some(Start { slot: 2, bytes: 0..40, evicted: vec![0] }));
        assert_eq!((run(&mut window, 1), run(&mut window, 2)), (vec![3], vec![0]));
        assert_eq!((run(&mut window, 3), window.resets()), (vec![1], 0));
    }

    #[test]
    fn a_network_that_fits_is_copied_once() {
        let mut window = window(&[30, 30, 30], 100);
        assert_eq!(pump(&mut window), [0, 1, 2]);
        for slot in [0, 1, 2, 0, 1, 2, 0] {
            assert!(run(&mut window, slot).is_empty());
        }
        assert_eq!(window.resets(), 0);
    }

    #[test]
    fn another_order_restarts_copies_and_evicts_skipped_segments() {
        let mut window = window(&[40, 40, 40, 40], 100);
        pump(&mut window);
        assert_eq!(run(&mut window, 1), [2, 3], "0 was skipped");
        assert_eq!(window.enter(0), Entry::Missing);
        assert_eq!(window.next().map(|start| start.slot), Some(0));
        assert_eq!((window.enter(0), window.resets()), (Entry::Ready, 1));
    }

    #[test]
    fn a_segment_in_the_ring_may_run_twice() {
        let mut window = window(&[40, 40, 40], 120);
        pump(&mut window);
        assert_eq!((window.enter(1), window.enter(1)), (Entry::Ready, Entry::Ready));
        window.leave(1);
        assert!(pump(&mut window).is_empty(), "still in use once");
        window.leave(1);
        assert_eq!((window.enter(1), window.resets()), (Entry::Ready, 0));
    }

    #[test]
    fn a_slot_in_use_is_reported_and_not_overwritten() {
        let mut window = window(&[80, 80], 100);
        pump(&mut window);
        assert_eq!((window.enter(0), window.enter(1)), (Entry::Ready, Entry::Busy(0)));
        window.leave(0);
        pump(&mut window);
        assert_eq!(window.enter(1), Entry::Ready);
    }

    /// The first piece of a segment is copied while another one still has the bytes of its last.
    #[test]
    fn pieces_start_as_soon_as_their_own_bytes_are_free() {
        let a = ALIGNMENT;
        // 0 and 1 fill the ring; 2 has the bytes of both.
        let mut window = Window::new(SlotLayout::new(&[2 * a, 4 * a, 6 * a], 6 * a, 2 * a));
        assert_eq!(pump(&mut window), [0, 1, 1]);
        assert_eq!(window.enter(0), Entry::Ready);
        assert_eq!(pump(&mut window), [0; 0]);
        window.leave(0);
        assert_eq!(window.next(), Some(Start { slot: 2, bytes: 0..2 * a, evicted: vec![0] }));
        assert_eq!(window.enter(1), Entry::Ready);
        assert_eq!(window.next(), None, "1 is in use");
        assert_eq!(window.enter(2), Entry::Busy(1));
        window.leave(1);
        assert_eq!(window.next(), Some(Start { slot: 2, bytes: 2 * a..4 * a, evicted: vec![1] }));
        assert_eq!(window.next(), Some(Start { slot: 2, bytes: 4 * a..6 * a, evicted: vec![1] }));
        assert_eq!((window.enter(2), window.resets()), (Entry::Ready, 0));
        window.leave(2);
        assert_eq!(pump(&mut window), [0, 1, 1]);
    }

    #[test]
    fn a_segment_of_which_a_part_is_missing_goes_on_where_others_were_skipped() {
        let a = ALIGNMENT;
        let mut window = Window::new(SlotLayout::new(&[2 * a, 2 * a, 4 * a, 2 * a], 6 * a, 2 * a));
        assert_eq!(pump(&mut window), [0, 1]);
        assert_eq!(run(&mut window, 0), [2], "one piece of two");
        assert_eq!(window.enter(2), Entry::Missing);
        assert_eq!(pump(&mut window), [2, 3]);
        assert_eq!((window.enter(2), window.resets()), (Entry::Ready, 0), "1 was skipped");
    }

    #[test]
    fn segments_in_order_never_restart_copies() {
        let sizes = [30, 7, 55, 21, 60, 3, 44].map(|size| size * ALIGNMENT);
        for (ring, piece) in (60..240).flat_map(|ring| [1, 7, 20, 100].map(|piece| (ring, piece))) {
            let mut window = Window::new(SlotLayout::new(&sizes, ring * ALIGNMENT, piece * ALIGNMENT));
            pump(&mut window);
            for slot in (0..4).flat_map(|_| 0..sizes.len()) {
                run(&mut window, slot);
            }
            assert_eq!(window.resets(), 0, "a ring of {ring} in pieces of {piece}");
        }
    }

    /// For any order of entries, a segment in use shares no byte with one that is copied, and all of its bytes are there.
    #[test]
    fn no_copy_ever_takes_bytes_in_use() {
        let (sizes, mut random) = ([30, 7, 55, 21, 60, 3, 44].map(|size| size * ALIGNMENT), 1u64);
        for (ring, piece) in (60..140).flat_map(|ring| [7, 20, usize::MAX / ALIGNMENT].map(|piece| (ring, piece))) {
            let places = SlotLayout::new(&sizes, ring * ALIGNMENT, piece * ALIGNMENT);
            let mut window = Window::new(places);
            let mut held: Vec<usize> = Vec::new();
            // The segment whose bytes are in each unit of the ring.
            let mut content: Vec<Option<(usize, usize)>> = vec![None; ring];
            let mut pump = |window: &mut Window, held: &[usize]| {
                let mut started = 0;
                while let Some(Start { slot, bytes, .. }) = window.next() {
                    assert!(!held.contains(&slot));
                    let start = window.places().span(slot).start;
                    for at in (bytes.start..bytes.end).step_by(ALIGNMENT) {
                        let old = content[(start + at) / ALIGNMENT].replace((slot, at));
                        assert!(old.is_none_or(|(old, _)| !held.contains(&old)));
                    }
                    started += 1;
                }
                (started, content.clone())
            };
            for _ in 0..200 {
                pump(&mut window, &held);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let slot = (random >> 33) as usize % sizes.len();
                if random >> 63 == 1 && !held.is_empty() {
                    window.leave(held.swap_remove(slot % held.len()));
                    continue;
                }
                let mut entry = window.enter(slot);
                if entry == Entry::Missing {
                    assert!(pump(&mut window, &held).0 > 0);
                    entry = window.enter(slot);
                }
                match entry {
                    Entry::Ready => {
                        let (_, content) = pump(&mut window, &[&held[..], &[slot]].concat());
                        let span = window.places().span(slot);
                        for at in span.clone().step_by(ALIGNMENT) {
                            assert_eq!(content[at / ALIGNMENT], Some((slot, at - span.start)));
                        }
                        held.push(slot);
                    }
                    Entry::Busy(other) => assert!(held.contains(&other)),
                    Entry::Missing => panic!("the segment was just copied"),
                }
            }
        }
    }
}
