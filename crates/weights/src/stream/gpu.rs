//! Streaming to a GPU.

use std::collections::VecDeque;
use std::sync::Arc;

use kiln_files::ByteSize;
use kiln_ops::stream::{Copy, HostSlab, Point, Ring};
use parking_lot::{Mutex, MutexGuard};

use super::StreamConfig;
use super::report::StreamReport;
use super::slot_layout::SlotLayout;
use super::window::{Entry, Start, Window};
use crate::error::{Error, Result};
use crate::load::{Placement, layout_on, packed_one};
use crate::segment::{Segment, Slab, Streamer};
use crate::shared::place;
use crate::source::ParamSource;

/// Shorter waits are the launch latency of a GPU, not waits for a copy.
const STALL: f64 = 5e-6;

/// The streamed segments of a network on a GPU.
pub(super) struct GpuStream {
    segments: Vec<Segment>,
    ring_bytes: usize,
    state: Mutex<State>,
}

struct State {
    window: Window,
    ring: Ring,
    /// Views of the segments' slots in the ring, while the segment does not have them.
    slabs: Vec<Option<Slab>>,
    /// The copies of each segment's pieces, until computing waits for them.
    copies: Vec<Vec<Copy>>,
    /// The end of each segment's last use, while no copy has replaced it.
    uses: Vec<Option<Arc<Point>>>,
    /// Whether uses are timed, which has a cost.
    timed: bool,
    /// The start of computing for a segment in use, once its weights arrived.
    begun: Vec<Option<Point>>,
    /// Uses whose times were not read yet.
    unread: VecDeque<Use>,
    /// Total compute seconds and number of uses of each segment.
    computed: Vec<(f64, usize)>,
    /// Copies of a segment whose times were not read yet, and the point at which computing needed them.
    unreported: VecDeque<(Vec<Copy>, Point)>,
    report: StreamReport,
    /// An error when a segment was left. The next `enter` returns it.
    failed: Option<Error>,
}

/// A use of a segment, from the arrival of its weights on.
struct Use {
    slot: usize,
    begun: Point,
    left: Arc<Point>,
}

impl GpuStream {
    pub(super) fn start(
        segments: Vec<Segment>,
        source: &Arc<dyn ParamSource>,
        placement: &Placement,
        config: &StreamConfig,
    ) -> Result<Arc<Self>> {
        let (device, types) = (&placement.device, placement.slab());
        let layout = layout_on(device);
        let bytes: Vec<usize> = segments.iter().map(|segment| segment.bytes(types)).collect();
        let waits = in_host_memory(&bytes, config.host_bytes);
        let slab = |(slot, segment): (usize, &Segment)| -> Result<Arc<HostSlab>> {
            if !waits[slot] {
                let (segment, source) = (segment.clone(), source.clone());
                let read = move || Ok(packed_one(&segment, source.as_ref(), types, layout)?);
                return Ok(Arc::new(HostSlab::read_anew(bytes[slot], read)));
            }
            let source = source.as_ref();
            let make = || Ok(HostSlab::new(packed_one(segment, source, types, layout)?, config.pinned.as_ref())?);
            match place(segment, source, types, layout) {
                Some((shared, name)) => shared.host_slab(name, make),
                None => Ok(Arc::new(make()?)),
            }
        };
        let host = segments.iter().enumerate().map(slab).collect::<Result<Vec<_>>>()?;
        let (size, ring_bytes) = (types.dtype.size_in_bytes(), config.residency.ring_bytes());
        let pageable = host.iter().zip(&waits).filter(|(slab, waits)| **waits && !slab.is_pinned()).count();
        if pageable > 0 {
            tracing::info!("{pageable} of {} streamed segments are not in pinned memory", host.len());
        }
        let read: usize = bytes.iter().zip(&waits).filter(|(_, waits)| !**waits).map(|(bytes, _)| bytes).sum();
        if read > 0 {
            let (read, room) = (ByteSize(read), ByteSize(usize::try_from(config.host_bytes).unwrap_or(usize::MAX)));
            tracing::warn!("{read} of weights are read from their files in every step: {room} of host memory are free");
        }
        let ring = Ring::new(device, types.dtype, ring_bytes / size, host, config.copy_stream)?;
        let places = SlotLayout::new(&bytes, ring_bytes, config.residency.piece_bytes());
        let view = |(slot, segment): (usize, &Segment)| -> Result<Option<Slab>> {
            let place = ring.tensor().narrow(0, places.span(slot).start / size, bytes[slot] / size)?;
            Ok(Some(Slab::new(segment, &place, types, layout)?))
        };
        let count = segments.len();
        let state = State {
            slabs: segments.iter().enumerate().map(view).collect::<Result<_>>()?,
            window: Window::new(places),
            ring,
            copies: (0..count).map(|_| Vec::new()).collect(),
            uses: vec![None; count],
            timed: false,
            begun: (0..count).map(|_| None).collect(),
            unread: VecDeque::new(),
            computed: vec![(0.0, 0); count],
            unreported: VecDeque::new(),
            report: StreamReport::default(),
            failed: None,
        };
        let this = Self { segments, ring_bytes, state: Mutex::new(state) };
        this.copy_ahead(&mut this.state())?;
        Ok(Arc::new(this))
    }

    /// Waits for the copies that were started.
    pub(super) fn report(&self) -> Result<StreamReport> {
        let mut state = self.state();
        state.read_copies(true)?;
        Ok(StreamReport { resets: state.window.resets(), ..state.report })
    }

    /// The mean compute seconds of each segment's uses since the last call, without waits for its weights. The first
    /// call returns zeros, and starts the timing. Waits for the uses that were started.
    pub(super) fn take_compute_seconds(&self) -> Result<Vec<f64>> {
        let mut state = self.state();
        state.timed = true;
        state.read_uses(true)?;
        let mean = |(seconds, uses): &mut (f64, usize)| std::mem::take(seconds) / std::mem::take(uses).max(1) as f64;
        Ok(state.computed.iter_mut().map(mean).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Submits all copies that have room. Each waits on the GPU for the last use of its bytes.
    fn copy_ahead(&self, state: &mut State) -> Result<()> {
        while let Some(Start { slot, bytes, evicted }) = state.window.next() {
            // Copies run one after another, so that what an earlier one has waited for is over for all of them.
            let after: Vec<Arc<Point>> = evicted.iter().filter_map(|&i| state.uses[i].take()).collect();
            let offset = state.window.places().span(slot).start + bytes.start;
            state.report.bytes += bytes.len() as u64;
            state.report.copies += 1;
            if bytes.start == 0 {
                state.copies[slot].clear(); // of contents that nothing has used
            }
            let copy = state.ring.copy(slot, bytes, offset, &after)?;
            state.copies[slot].push(copy);
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
                Entry::Missing => self.copy_ahead(state)?,
                Entry::Busy(busy) => {
                    return Err(Error::RingBusy {
                        segment: self.segments[slot].name().into(),
                        busy: self.segments[busy].name().into(),
                        ring: self.ring_bytes,
                    });
                }
            }
        }
        let copies = std::mem::take(&mut state.copies[slot]);
        if let Some(last) = copies.last() {
            let arrived = state.ring.point()?;
            state.ring.wait(last)?;
            state.unreported.push_back((copies, arrived));
            state.read_copies(false)?;
        }
        if let Some(slab) = state.slabs[slot].take() {
            self.segments[slot].set_slab(Some(slab));
        }
        if state.timed {
            state.begun[slot] = Some(state.ring.point()?);
        }
        Ok(())
    }
}

/// Which of the slabs of these sizes wait in host memory, of which there are `room` bytes: as many as fit, spread evenly over the
/// running order, so that those that are read come evenly, too.
fn in_host_memory(bytes: &[usize], room: u64) -> Vec<bool> {
    let all: u64 = bytes.iter().map(|&bytes| bytes as u64).sum();
    let (mut seen, mut kept) = (0u64, 0u64);
    let keeps = |&bytes: &usize| {
        let bytes = bytes as u64;
        seen += bytes;
        // As if each slab kept its share of the room.
        let share = u128::from(seen) * u128::from(room.min(all)) / u128::from(all.max(1));
        let keeps = u128::from(kept + bytes) <= share;
        kept += if keeps { bytes } else { 0 };
        keeps
    };
    bytes.iter().map(keeps).collect()
}

impl State {
    /// Reads the times of uses that have ended, or waits for all of them.
    fn read_uses(&mut self, wait: bool) -> Result<()> {
        while let Some(Use { slot, begun, left }) = self.unread.front() {
            if !wait && !left.is_done()? {
                break;
            }
            let (seconds, uses) = &mut self.computed[*slot];
            *seconds += left.seconds_after(begun)?;
            *uses += 1;
            self.unread.pop_front();
        }
        Ok(())
    }

    /// Reads the times of copies that have ended, or waits for all of them.
    fn read_copies(&mut self, wait: bool) -> Result<()> {
        while let Some((copies, arrived)) = self.unreported.front() {
            let Some(last) = copies.last() else { break };
            if !(wait || (last.is_done()? && arrived.is_done()?)) {
                break;
            }
            let seconds = copies.iter().map(Copy::seconds).sum::<std::result::Result<f64, _>>()?;
            let waited = last.seconds_after(arrived)?;
            self.report.copy_seconds += seconds;
            if waited > STALL {
                self.report.stalls += 1;
                self.report.stall_seconds += waited;
            }
            self.unreported.pop_front();
        }
        Ok(())
    }
}

impl Streamer for GpuStream {
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
            let left = Arc::new(point);
            if let Some(begun) = state.begun[slot].take() {
                state.unread.push_back(Use { slot, begun, left: left.clone() });
            }
            state.uses[slot] = Some(left);
            self.copy_ahead(state)?;
            state.read_uses(false)
        });
        if let Err(error) = done {
            state.failed = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::in_host_memory;

    #[test]
    fn as_many_slabs_as_fit_wait_in_host_memory_evenly() {
        let bytes = [10; 6];
        assert_eq!(in_host_memory(&bytes, u64::MAX), [true; 6]);
        assert_eq!(in_host_memory(&bytes, 60), [true; 6]);
        assert_eq!(in_host_memory(&bytes, 0), [false; 6]);
        assert_eq!(in_host_memory(&bytes, 30), [false, true, false, true, false, true]);
        assert_eq!(in_host_memory(&bytes, 59).iter().filter(|waits| **waits).count(), 5);
        let (uneven, room) = ([500, 1, 7, 300, 40, 2, 90], 400);
        let kept = in_host_memory(&uneven, room);
        assert!(uneven.iter().zip(kept).filter(|(_, waits)| *waits).map(|(bytes, _)| bytes).sum::<usize>() <= 400);
        assert_eq!(in_host_memory(&[], 5), [false; 0]);
    }
}
