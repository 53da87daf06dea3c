//! The order of work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kiln_ops::{Error, Result};
use parking_lot::Mutex;

use crate::buffers::Buffer;
use crate::dispatch::{Dispatch, KernelCall};

/// Dispatches between two submissions, so that the GPU begins while the host adds others.
const PART: usize = 64;

/// Calls that wait for their kernels at most. A step of a large model has some thousands.
const MOST_WAITING: usize = 4096;
/// Bytes that are written at once. wgpu stages them in memory that the GPU sees, often its own.
const WRITTEN: usize = 32 << 20;
/// Such parts that may be staged at a time. Without a bound a whole model is staged while it loads, and takes its memory twice.
const STAGED: usize = 3;

/// The queue of a GPU.
#[derive(Debug)]
pub(crate) struct Queue {
    device: wgpu::Device,
    queue: wgpu::Queue,
    state: Mutex<State>,
    /// Floating point operations between two submissions.
    most_flop: AtomicU64,
    /// The first error since the last time that somebody waited.
    failure: Arc<Mutex<Option<String>>>,
}

#[derive(Debug, Default)]
struct State {
    pass: Option<Pass>,
    /// Calls from the first one on whose kernel is not compiled yet.
    waiting: VecDeque<(KernelCall, wgpu::BindGroup)>,
    /// Bytes that were written since the last of `staged`.
    written: usize,
    /// The submissions after which written parts are no longer staged.
    staged: VecDeque<wgpu::SubmissionIndex>,
    /// The seconds of the work that is timed.
    timed: Option<f64>,
}

/// Work that has not been submitted.
#[derive(Debug)]
struct Pass {
    pass: wgpu::ComputePass<'static>,
    encoder: wgpu::CommandEncoder,
    dispatches: usize,
    flop: f64,
}

impl Queue {
    /// The queue of a device, which submits at most `most_flop` floating point operations at once.
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue, most_flop: u64) -> Self {
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let (errors, losses) = (failure.clone(), failure.clone());
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            errors.lock().get_or_insert_with(|| error.to_string());
        }));
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                losses.lock().get_or_insert_with(|| format!("the GPU was lost: {message}"));
            }
        });
        Self { device, queue, state: Mutex::default(), most_flop: AtomicU64::new(most_flop), failure }
    }

    /// Adds a dispatch.
    pub(crate) fn add(&self, dispatch: Dispatch<'_>) -> Result<()> {
        self.failed()?;
        let (bindings, call) = (dispatch.bindings(&self.device), dispatch.into_call());
        let mut state = self.state.lock();
        if let Some(seconds) = state.timed {
            state.timed = Some(seconds + self.time(&call, &bindings)?);
            return Ok(());
        }
        state.waiting.push_back((call, bindings));
        let has_many = state.waiting.len() > MOST_WAITING;
        self.record(&mut state, has_many)
    }

    /// Records the calls whose kernels are compiled, in their order. `all` waits for the others.
    fn record(&self, state: &mut State, all: bool) -> Result<()> {
        while let Some((call, bindings)) = state.waiting.pop_front_if(|(call, _)| all || call.is_compiled()) {
            if let Err(error) = self.record_call(state, &call, &bindings) {
                state.waiting.clear(); // they use its result
                return Err(error);
            }
        }
        Ok(())
    }

    fn record_call(&self, state: &mut State, call: &KernelCall, bindings: &wgpu::BindGroup) -> Result<()> {
        let most = self.most_flop.load(Ordering::Relaxed) as f64;
        for part in call.parts(most) {
            if state.pass.as_ref().is_some_and(|work| work.flop + part.flop > most) {
                self.submit_pass(state);
            }
            let work = state.pass.get_or_insert_with(|| {
                let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
                Pass { pass, encoder, dispatches: 0, flop: 0.0 }
            });
            call.record(&part, &mut work.pass, bindings)?;
            work.dispatches += 1;
            work.flop += part.flop;
            if work.dispatches >= PART {
                self.submit_pass(state);
            }
        }
        Ok(())
    }

    /// Submits at most so many floating point operations at once from now on.
    pub(crate) fn set_most_flop(&self, flop: u64) {
        self.most_flop.store(flop, Ordering::Relaxed);
    }

    /// Submits all work so far.
    pub(crate) fn flush(&self) {
        self.submit(&mut self.state.lock());
    }

    /// Writes bytes, after all work so far.
    pub(crate) fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        self.submit(&mut state);
        for (part, offset) in bytes.chunks(WRITTEN).zip((0..).step_by(WRITTEN)) {
            self.write_part(buffer, offset, part);
            state.written += part.len();
            if state.written >= WRITTEN {
                state.written = 0;
                state.staged.push_back(self.queue.submit([]));
            }
            if state.staged.len() > STAGED {
                let submission_index = state.staged.pop_front();
                self.poll(wgpu::PollType::Wait { submission_index, timeout: None })?;
            }
        }
        self.failed()
    }

    /// Writes bytes at a multiple of 4 bytes.
    fn write_part(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        // The size of a copy is a multiple of 4 bytes.
        let whole = bytes.len() / 4 * 4;
        self.queue.write_buffer(buffer.wgpu(), offset, &bytes[..whole]);
        if whole < bytes.len() {
            let mut last = [0; 4];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.queue.write_buffer(buffer.wgpu(), offset + whole as u64, &last);
        }
    }

    fn poll(&self, until: wgpu::PollType) -> Result<()> {
        let polled = self.device.poll(until);
        polled.map(drop).map_err(|error| Error::Backend(format!("the GPU does not answer: {error}")))
    }

    /// Bytes `start..start + len`, after all work so far.
    pub(crate) fn read(&self, buffer: &Buffer, start: usize, len: usize) -> Result<Vec<u8>> {
        // Copies begin and end at multiples of 4 bytes.
        let first = start / 4 * 4;
        let size = (start + len - first).next_multiple_of(4) as u64;
        let mut state = self.state.lock();
        self.submit(&mut state);
        drop(state);
        let view = self.staged(buffer.wgpu(), first as u64, size)?;
        Ok(view[start - first..start - first + len].to_vec())
    }

    /// `size` bytes of a buffer from `first` on, once all submitted work is complete.
    fn staged(&self, buffer: &wgpu::Buffer, first: u64, size: u64) -> Result<Vec<u8>> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: size.max(4),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, first, &staging, 0, size);
        self.queue.submit([encoder.finish()]);
        let (sender, received) = std::sync::mpsc::channel();
        staging.slice(..).map_async(wgpu::MapMode::Read, move |result| {
            let _ = sender.send(result);
        });
        self.poll(wgpu::PollType::wait_indefinitely())?;
        self.failed()?;
        let refused = |error: String| Error::Backend(format!("a result cannot be read from the GPU: {error}"));
        let mapped = received.recv().map_err(|error| refused(error.to_string()))?;
        mapped.map_err(|error| refused(error.to_string()))?;
        let view = staging.slice(..).get_mapped_range().map_err(|error| refused(error.to_string()))?;
        Ok(view.to_vec())
    }

    /// Runs `work`, waiting for each dispatch, and returns the seconds in which the GPU computed. Other threads' dispatches count too.
    pub(crate) fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        if !self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Err(Error::Backend("this GPU has no timestamps, which a trace needs".into()));
        }
        {
            let mut state = self.state.lock();
            self.submit(&mut state);
            state.timed = Some(0.0);
        }
        let result = work();
        let seconds = self.state.lock().timed.take();
        result.map(|()| seconds.unwrap_or(0.0))
    }

    /// The seconds of a call by the GPU's clock.
    fn time(&self, call: &KernelCall, bindings: &wgpu::BindGroup) -> Result<f64> {
        let queries = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: 2,
        });
        let size = 2 * size_of::<u64>() as u64;
        let resolved = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let timestamp_writes = Some(wgpu::ComputePassTimestampWrites {
            query_set: &queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        });
        let mut pass = encoder
            .begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes })
            .forget_lifetime();
        for part in call.parts(self.most_flop.load(Ordering::Relaxed) as f64) {
            call.record(&part, &mut pass, bindings)?;
        }
        drop(pass);
        encoder.resolve_query_set(&queries, 0..2, &resolved, 0);
        self.queue.submit([encoder.finish()]);
        let bytes = self.staged(&resolved, 0, size)?;
        let ticks =
            |at: usize| bytes.get(at..at + 8).and_then(|ticks| ticks.try_into().ok()).map_or(0, u64::from_ne_bytes);
        Ok(ticks(8).saturating_sub(ticks(0)) as f64 * f64::from(self.queue.get_timestamp_period()) * 1e-9)
    }

    /// Submits all work so far, once its kernels are compiled. If the driver refuses one, the next call of `failed` returns the error.
    fn submit(&self, state: &mut State) {
        if let Err(error) = self.record(state, true) {
            self.failure.lock().get_or_insert_with(|| error.to_string());
        }
        self.submit_pass(state);
    }

    fn submit_pass(&self, state: &mut State) {
        if let Some(Pass { pass, encoder, .. }) = state.pass.take() {
            drop(pass);
            self.queue.submit([encoder.finish()]);
        }
    }

    /// The first error since the last call, if there was one.
    fn failed(&self) -> Result<()> {
        match self.failure.lock().take() {
            Some(message) => Err(Error::Backend(message)),
            None => Ok(()),
        }
    }
}
