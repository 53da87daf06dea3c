//! Streaming to the CPU: a thread reads, converts and packs ahead.
//!
//! The ring only counts bytes here, with the same slots and rules as on a GPU, and each slab is a separate tensor.
//! Freed memory is reused for the next slab (`kiln_mempool::HostPool`), and a slab that is still referenced is not
//! overwritten. The thread packs with all CPU threads that are idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use candle_core::Device;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rayon::ThreadPool;

use super::report::StreamReport;
use super::slot_layout::SlotLayout;
use super::window::{Entry, Start, Window};
use crate::error::{Error, Result};
use crate::load::{Placement, packed_one};
use crate::param_spec::SlabType;
use crate::segment::{Segment, Slab, Streamer};
use crate::source::ParamSource;

/// The streamed segments of a network on the CPU.
pub(super) struct HostStream {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    segments: Vec<Segment>,
    source: Arc<dyn ParamSource>,
    types: SlabType,
    placement: Placement,
    ring_bytes: usize,
    state: Mutex<State>,
    /// Signals that a slab is ready, that there is work, or that the stream ends.
    changed: Condvar,
}

struct State {
    window: Window,
    /// Segments to pack, in this order.
    queue: VecDeque<usize>,
    /// The segment that is being packed, and whether its slot is still its own.
    packing: Option<(usize, bool)>,
    /// Segments whose slabs are ready, or the reason why they are not.
    ready: Vec<Option<Result<()>>>,
    report: StreamReport,
    stopped: bool,
}

impl HostStream {
    pub(super) fn start(
        segments: Vec<Segment>,
        source: Arc<dyn ParamSource>,
        placement: &Placement,
        ring_bytes: usize,
        pool: Option<Arc<ThreadPool>>,
    ) -> Result<Arc<Self>> {
        let types = placement.slab();
        let sizes: Vec<usize> = segments.iter().map(|segment| segment.bytes(types)).collect();
        let state = State {
            window: Window::new(SlotLayout::new(&sizes, ring_bytes, usize::MAX)),
            queue: VecDeque::new(),
            packing: None,
            ready: segments.iter().map(|_| None).collect(),
            report: StreamReport::default(),
            stopped: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared =
            Arc::new(Shared { segments, source, types, placement: placement.clone(), ring_bytes, state, changed });
        shared.pack_ahead(&mut shared.state());
        let worker = shared.clone();
        let thread =
            std::thread::Builder::new().name("kiln-weights".into()).spawn(move || worker.work(pool.as_deref()));
        let thread = thread.map_err(|source| Error::Thread { source })?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    pub(super) fn report(&self) -> StreamReport {
        let state = self.shared.state();
        StreamReport { resets: state.window.resets(), ..state.report }
    }

    /// Ends the thread, and drops the slabs that it packed.
    pub(super) fn stop(&self) {
        self.shared.end();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that reads streamed weights panicked");
        }
        for segment in &self.shared.segments {
            segment.set_slab(None);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        self.changed.wait(state);
    }

    fn end(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Queues all slabs that have room, and drops those that they replace.
    fn pack_ahead(&self, state: &mut State) {
        while let Some(Start { slot, evicted, .. }) = state.window.next() {
            for evicted in evicted {
                state.queue.retain(|&wanted| wanted != evicted);
                if let Some((packing, is_its_own)) = &mut state.packing
                    && *packing == evicted
                {
                    *is_its_own = false;
                }
                state.ready[evicted] = None;
                self.segments[evicted].set_slab(None);
            }
            state.queue.push_back(slot);
        }
        self.changed.notify_all();
    }

    /// The thread: packs queued segments until the stream ends.
    fn work(&self, pool: Option<&ThreadPool>) {
        /// All waiters must be notified, however the thread ends.
        struct End<'a>(&'a Shared);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let _end = End(self);
        let layout = self.placement.layout_on(&Device::Cpu);
        let mut state = self.state();
        while !state.stopped {
            let Some(slot) = state.queue.pop_front() else {
                self.wait(&mut state);
                continue;
            };
            state.packing = Some((slot, true));
            drop(state);
            let (segment, start) = (&self.segments[slot], Instant::now());
            let pack = || packed_one(segment, self.source.as_ref(), self.types, layout);
            let slab = pool.map_or_else(pack, |pool| pool.install(pack));
            let slab = slab.and_then(|slab| Slab::new(segment, &slab, self.types, layout));
            // The copy to a device runs in parallel with the operators too.
            let slab = slab.and_then(|slab| match &self.placement.backend {
                Some(backend) => slab.upload(backend),
                None => Ok(slab),
            });
            let seconds = start.elapsed().as_secs_f64();
            state = self.state();
            state.report.bytes += segment.bytes(self.types) as u64;
            state.report.copies += 1;
            state.report.copy_seconds += seconds;
            if let Some((_, true)) = state.packing.take() {
                state.ready[slot] = Some(slab.map(|slab| {
                    segment.set_slab(Some(slab));
                }));
                self.changed.notify_all();
            }
        }
    }

    fn enter(&self, slot: usize) -> Result<()> {
        let mut state = self.state();
        loop {
            match state.window.enter(slot) {
                Entry::Ready => break,
                Entry::Missing => self.pack_ahead(&mut state),
                Entry::Busy(busy) => {
                    return Err(Error::RingBusy {
                        segment: self.segments[slot].name().into(),
                        busy: self.segments[busy].name().into(),
                        ring: self.ring_bytes,
                    });
                }
            }
        }
        let start = Instant::now();
        let mut waited = false;
        while state.ready[slot].is_none() && !state.stopped {
            waited = true;
            self.wait(&mut state);
        }
        if waited {
            state.report.stalls += 1;
            state.report.stall_seconds += start.elapsed().as_secs_f64();
        }
        let failure = match state.ready[slot].take() {
            Some(Ok(())) => {
                state.ready[slot] = Some(Ok(()));
                return Ok(());
            }
            Some(Err(error)) => error,
            None => Error::StreamEnded(self.segments[slot].name().into()),
        };
        state.window.forget(slot); // a retry reads it again
        Err(failure)
    }
}

impl Streamer for HostStream {
    fn enter(&self, slot: usize) -> Result<()> {
        self.shared.enter(slot)
    }

    fn leave(&self, slot: usize) {
        let mut state = self.shared.state();
        state.window.leave(slot);
        self.shared.pack_ahead(&mut state);
    }
}
