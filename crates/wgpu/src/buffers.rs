//! Memory on the GPU, and its reuse.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kiln_ops::portable::Memory;
use kiln_ops::{Error, Result};
use parking_lot::Mutex;

/// Sizes are rounded up to a multiple of this, so that more requests find a free buffer.
const GRANULE: u64 = 1024;

/// The buffers of a GPU. Those that are free wait for a request of their size: work is queued in one order, so that a buffer may be
/// used again before the work that read it is complete.
#[derive(Debug)]
pub(crate) struct Buffers {
    device: wgpu::Device,
    largest: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Free buffers by their size.
    free: BTreeMap<u64, Vec<wgpu::Buffer>>,
    /// Bytes of all buffers.
    bytes: u64,
    /// The most that there may be.
    limit: Option<u64>,
}

/// A buffer that returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    buffer: Option<wgpu::Buffer>,
    pool: Weak<Buffers>,
}

impl Buffers {
    pub(crate) fn new(device: &wgpu::Device) -> Self {
        let limits = device.limits();
        let largest = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        Self { device: device.clone(), largest, state: Mutex::default() }
    }

    /// A buffer of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfGpuMemory`], after which [`Self::trim`] may help.
    pub(crate) fn get(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let size = (bytes as u64).max(1).next_multiple_of(GRANULE);
        if size > self.largest {
            let message = format!("a tensor takes {size} bytes, and a buffer of this GPU has {} at most", self.largest);
            return Err(Error::Backend(message));
        }
        let free = self.state.lock().free.get_mut(&size).and_then(Vec::pop);
        let buffer = free.map_or_else(|| self.create(size), Ok)?;
        Ok(Buffer { buffer: Some(buffer), pool: Arc::downgrade(self) })
    }

    /// Gives the memory of a buffer back to the driver, once the work that uses it is complete.
    pub(crate) fn discard(&self, mut buffer: Buffer) {
        if let Some(buffer) = buffer.buffer.take() {
            self.state.lock().bytes -= buffer.size();
        }
    }

    /// Sets the most bytes of all buffers. Returns whether there are more.
    pub(crate) fn set_limit(&self, limit: Option<u64>) -> bool {
        let mut state = self.state.lock();
        state.limit = limit;
        limit.is_some_and(|limit| state.bytes > limit)
    }

    /// Gives the memory of free buffers back to the driver, once the work that used it is complete.
    pub(crate) fn trim(&self) {
        let free = {
            let mut state = self.state.lock();
            let free = std::mem::take(&mut state.free);
            state.bytes -= free.iter().map(|(size, buffers)| size * buffers.len() as u64).sum::<u64>();
            free
        };
        drop(free);
        let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
    }

    fn create(&self, size: u64) -> Result<wgpu::Buffer> {
        self.reserve(size)?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer =
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
        match pollster::block_on(scope.pop()) {
            None => Ok(buffer),
            Some(error) => {
                self.state.lock().bytes -= size;
                Err(Error::OutOfGpuMemory { bytes: size, message: error.to_string() })
            }
        }
    }

    /// Counts a buffer that is made next.
    fn reserve(&self, size: u64) -> Result<()> {
        let mut state = self.state.lock();
        match state.limit.filter(|limit| state.bytes + size > *limit) {
            None => {
                state.bytes += size;
                Ok(())
            }
            Some(limit) => {
                let message = format!("{} of the {limit} bytes that are allowed are taken", state.bytes);
                Err(Error::OutOfGpuMemory { bytes: size, message })
            }
        }
    }
}

impl Buffer {
    pub(crate) fn wgpu(&self) -> &wgpu::Buffer {
        // Only `drop` takes it.
        self.buffer.as_ref().expect("a buffer until it is dropped")
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.wgpu().size()
    }
}

impl Memory for Buffer {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(buffer), Some(pool)) = (self.buffer.take(), self.pool.upgrade()) {
            pool.state.lock().free.entry(buffer.size()).or_default().push(buffer);
        }
    }
}
