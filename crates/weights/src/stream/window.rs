//! The rules for which segments are in the ring, and which is copied next, without any memory.
//!
//! Copies run ahead in running order, cyclically, as far as the ring has room. They overwrite segments that were used,
//! never one that is in use or still to be used. A pass that stops in the middle, or that runs segments in another
//! order, is correct as well: entering a segment that is not in the ring restarts the copies from it, which is counted
//! and costs time. The rings of the CPU and of GPUs and the simulation use these rules.

use super::slot_layout::SlotLayout;

/// The content of a segment's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Another segment, or nothing.
    Absent,
    /// Its weights, or a copy in flight, not used yet.
    Ahead,
    /// Its weights, with this number of uses in progress.
    InUse(usize),
    /// Its weights after their use: others may overwrite them.
    Used,
}

/// The ring's content.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    places: SlotLayout,
    states: Vec<State>,
    /// The segment whose copy is next.
    next: usize,
    resets: u64,
}

/// A copy that may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// The segment.
    pub(crate) slot: usize,
    /// The segments whose bytes it overwrites.
    pub(crate) evicted: Vec<usize>,
}

/// Whether a segment can be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Its weights are there or in flight.
    Ready,
    /// The copies restart from it: start the copies that [`Window::next`] returns, then enter again.
    Restart,
    /// Its slot is in use by this other segment.
    Busy(usize),
}

impl Window {
    /// An empty ring.
    pub(crate) fn new(places: SlotLayout) -> Self {
        let states = vec![State::Absent; places.len()];
        Self { places, states, next: 0, resets: 0 }
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
            let slot = self.next;
            match self.states.get(slot)? {
                State::Ahead | State::InUse(_) => return None, // the ring contains a whole pass
                State::Used => {
                    self.advance(slot); // still in the ring from the last pass
                    continue;
                }
                State::Absent => {}
            }
            let conflicts = self.places.conflicts(slot);
            if conflicts.iter().any(|&rival| matches!(self.states[rival], State::Ahead | State::InUse(_))) {
                return None;
            }
            let evicted: Vec<usize> =
                conflicts.iter().copied().filter(|&rival| self.states[rival] == State::Used).collect();
            for &rival in &evicted {
                self.states[rival] = State::Absent;
            }
            self.advance(slot);
            return Some(Start { slot, evicted });
        }
    }

    fn advance(&mut self, slot: usize) {
        self.states[slot] = State::Ahead;
        self.next = (slot + 1) % self.states.len();
    }

    /// Enters a segment.
    pub(crate) fn enter(&mut self, slot: usize) -> Entry {
        match self.states[slot] {
            State::InUse(times) => self.states[slot] = State::InUse(times + 1),
            State::Used => self.states[slot] = State::InUse(1),
            State::Ahead => {
                // Unused copies from before it must not keep their slots.
                let n = self.states.len();
                let age = |slot: usize| (self.next + n - slot - 1) % n; // copies that were started after its own
                let this = age(slot);
                for other in (0..n).filter(|&other| age(other) > this) {
                    if self.states[other] == State::Ahead {
                        self.states[other] = State::Used;
                    }
                }
                self.states[slot] = State::InUse(1);
            }
            State::Absent => {
                let conflicts = self.places.conflicts(slot);
                if let Some(&busy) = conflicts.iter().find(|&&rival| matches!(self.states[rival], State::InUse(_))) {
                    return Entry::Busy(busy);
                }
                for state in &mut self.states {
                    if *state == State::Ahead {
                        *state = State::Used;
                    }
                }
                self.next = slot;
                self.resets += 1;
                return Entry::Restart;
            }
        }
        Entry::Ready
    }

    /// Leaves a segment that was entered.
    pub(crate) fn leave(&mut self, slot: usize) {
        if let State::InUse(times) = self.states[slot] {
            self.states[slot] = if times > 1 { State::InUse(times - 1) } else { State::Used };
        }
    }

    /// Whether a segment was used and is no longer in use.
    pub(crate) fn is_used(&self, slot: usize) -> bool {
        self.states[slot] == State::Used
    }

    /// Marks a segment's slot as empty after its copy failed.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.states[slot] = State::Absent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(sizes: &[usize], ring: usize) -> Window {
        Window::new(SlotLayout::new(sizes, ring))
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
        assert_eq!(window.next(), Some(Start { slot: 2, evicted: vec![0] }));
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
        assert_eq!(window.enter(0), Entry::Restart);
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

    /// For any order of entries, a segment in use shares no byte with one that is copied.
    #[test]
    fn no_copy_ever_takes_bytes_in_use() {
        let (sizes, mut random) = ([30, 7, 55, 21, 60, 3, 44], 1u64);
        for ring in 60..140 {
            let mut window = window(&sizes, ring);
            let mut held: Vec<usize> = Vec::new();
            for _ in 0..200 {
                while let Some(start) = window.next() {
                    assert!(!held.contains(&start.slot));
                    assert!(held.iter().all(|slot| !window.places().conflicts(start.slot).contains(slot)));
                }
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let slot = (random >> 33) as usize % sizes.len();
                if random >> 63 == 1 && !held.is_empty() {
                    window.leave(held.swap_remove(slot % held.len()));
                } else {
                    let entry = match window.enter(slot) {
                        Entry::Restart => {
                            assert_eq!(window.next().map(|start| start.slot), Some(slot));
                            window.enter(slot)
                        }
                        entry => entry,
                    };
                    match entry {
                        Entry::Ready => held.push(slot),
                        Entry::Busy(other) => assert!(held.contains(&other)),
                        Entry::Restart => panic!("the segment was just copied"),
                    }
                }
            }
        }
    }
}
