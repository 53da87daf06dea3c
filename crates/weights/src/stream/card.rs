//! Streaming to a card.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln_ops::stream::{Copy, HostSlab, Point, Ring};

use super::StreamConfig;
use super::places::Places;
use super::report::StreamReport;
use super::window::{Entry, Start, Window};
use crate::error::{Error, Result};
use crate::load::{Placement, layout_on, packed};
use crate::segment::{Segment, Slab, Streamer};
use crate::source::ParamSource;

/// Waits shorter than this are the time in which a card takes up the next work, not waits for a copy.
const STALL: f64 = 5e-6;

/// The streamed segments of a network on a card.
pub(super) struct CardStream {
    segments: Vec<Segment>,
    bytes: Vec<usize>,
    ring_bytes: usize,
    state: Mutex<State>,
}

struct State {
    window: Window,
    ring: Ring,
    /// Views of the segments' places in the ring, where the segment has not got them.
    slabs: Vec<Option<Slab>>,
    /// The last copy of each.
    copies: Vec<Option<Arc<Copy>>>,
    /// Whether the card's work already waits for it.
    awaited: Vec<bool>,
    /// The end of each one's last use, while no copy has taken its place.
    uses: Vec<Option<Point>>,
    /// Copies that were used and whose times were not read yet, and when the computing came to where it needed them.
    untold: VecDeque<(Arc<Copy>, Point)>,
    report: StreamReport,
    /// What failed when a segment was left: the next one that is entered tells it.
    failed: Option<Error>,
}

impl CardStream {
    pub(super) fn start(
        segments: Vec<Segment>,
        source: &dyn ParamSource,
        placement: &Placement,
        config: &StreamConfig,
    ) -> Result<Arc<Self>> {
        let (device, types) = (&placement.device, placement.slab());
        let layout = layout_on(device);
        let slab = |segment: &Segment| -> Result<HostSlab> {
            Ok(HostSlab::new(packed(segment, source, types, layout)?, config.pinned.as_ref())?)
        };
        let host = segments.iter().map(slab).collect::<Result<Vec<_>>>()?;
        let (size, ring_bytes) = (types.dtype.size_in_bytes(), config.residency.ring_bytes());
        let pageable = host.iter().filter(|slab| !slab.is_pinned()).count();
        if pageable > 0 {
            tracing::info!("{pageable} of {} streamed segments are not in page-locked memory", host.len());
        }
        let ring = Ring::new(device, types.dtype, ring_bytes / size, host, config.copy_stream)?;
        let bytes: Vec<usize> = segments.iter().map(|segment| segment.bytes(types)).collect();
        let places = Places::new(&bytes, ring_bytes);
        let view = |(slot, segment): (usize, &Segment)| -> Result<Option<Slab>> {
            let place = ring.tensor().narrow(0, places.span(slot).start / size, bytes[slot] / size)?;
            Ok(Some(Slab::new(segment, &place, types, layout)?))
        };
        let count = segments.len();
        let state = State {
            slabs: segments.iter().enumerate().map(view).collect::<Result<_>>()?,
            window: Window::new(places),
            ring,
            copies: vec![None; count],
            awaited: vec![false; count],
            uses: (0..count).map(|_| None).collect(),
            untold: VecDeque::new(),
            report: StreamReport::default(),
            failed: None,
        };
        let this = Self { segments, bytes, ring_bytes, state: Mutex::new(state) };
        this.copy_ahead(&mut this.state())?;
        Ok(Arc::new(this))
    }

    /// Waits for the copies that have begun.
    pub(super) fn report(&self) -> Result<StreamReport> {
        let mut state = self.state();
        state.tell(true)?;
        Ok(StreamReport { resets: state.window.resets(), ..state.report })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the card all copies that have room. Each waits for the last use of its bytes, on the card.
    fn copy_ahead(&self, state: &mut State) -> Result<()> {
        while let Some(Start { slot, evicted }) = state.window.next() {
            // What lay there before those was waited for by their own copies.
            let after: Vec<Point> = evicted.iter().filter_map(|&i| state.uses[i].take()).collect();
            let offset = state.window.places().span(slot).start;
            let copy = Arc::new(state.ring.copy(slot, offset, &after)?);
            state.report.bytes += self.bytes[slot] as u64;
            state.report.copies += 1;
            state.copies[slot] = Some(copy);
            state.awaited[slot] = false;
        }
        Ok(())
    }

    fn try_enter(&self, state: &mut State, slot: usize) -> Result<()> {
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        loop {
            match state.window.enter(slot) {
                Entry::Ready => break,
                Entry::Restart => self.copy_ahead(state)?,
                Entry::Busy(busy) => {
                    return Err(Error::RingBusy {
                        segment: self.segments[slot].name().into(),
                        busy: self.segments[busy].name().into(),
                        ring: self.ring_bytes,
                    });
                }
            }
        }
        if !std::mem::replace(&mut state.awaited[slot], true)
            && let Some(copy) = &state.copies[slot]
        {
            let arrived = state.ring.point()?;
            state.ring.wait(copy)?;
            state.untold.push_back((copy.clone(), arrived));
            state.tell(false)?;
        }
        if let Some(slab) = state.slabs[slot].take() {
            self.segments[slot].set_slab(Some(slab));
        }
        Ok(())
    }
}

impl State {
    /// Reads the times of copies that have ended, or waits for all of them.
    fn tell(&mut self, wait: bool) -> Result<()> {
        while let Some((copy, arrived)) = self.untold.front() {
            let is_over = wait || (copy.is_done()? && arrived.is_done()?);
            if !is_over {
                break;
            }
            self.report.copy_seconds += copy.seconds()?;
            let waited = copy.seconds_after(arrived)?;
            if waited > STALL {
                self.report.stalls += 1;
                self.report.stall_seconds += waited;
            }
            self.untold.pop_front();
        }
        Ok(())
    }
}

impl Streamer for CardStream {
    fn enter(&self, slot: usize) -> Result<()> {
        let mut state = self.state();
        self.try_enter(&mut state, slot)
    }

    fn leave(&self, slot: usize) {
        let mut state = self.state();
        state.window.leave(slot);
        if state.window.is_used(slot) {
            state.slabs[slot] = self.segments[slot].set_slab(None);
        }
        let state = &mut *state;
        let done = state.ring.point().map_err(Error::from).and_then(|point| {
            state.uses[slot] = Some(point);
            self.copy_ahead(state)
        });
        if let Err(error) = done {
            state.failed = Some(error);
        }
    }
}
