//! Copies on a second CUDA stream, ordered by events.
#![allow(unsafe_code)]

mod reader;
mod staging;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::cuda::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda::cudarc::driver::{CudaEvent, CudaStream, result};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use rayon::prelude::*;

use self::staging::{StagingThreads, Task};
use super::{HostSlab, Memory};
use crate::cuda::{address, driver, output};
use crate::error::{Error, Result};

/// Bytes that one task copies in host memory.
const MOVED: usize = 1 << 20;

/// A ring buffer on a GPU, and the slabs that are copied into it.
pub struct Ring {
    // Dropped in this order, after the copies have ended.
    slabs: Vec<Arc<HostSlab>>,
    /// Makes all copies if a slab is not in pinned memory: they keep their order.
    staging: Option<StagingThreads>,
    memory: Tensor,
    base: u64,
    bytes: usize,
    compute: Arc<CudaStream>,
    /// The stream of copies; `compute` if they have none of their own.
    copies: Arc<CudaStream>,
}

/// A copy that was submitted to the GPU, or that a thread submits as soon as a staging buffer is free.
pub struct Copy(Arc<Submission>);

/// The events of a copy, from its submission on, or why it could not be submitted.
type Submission = OnceLock<std::result::Result<Events, String>>;

/// The events before a copy and after it.
struct Events {
    start: CudaEvent,
    end: CudaEvent,
}

/// A point in the work of the GPU.
pub struct Point(CudaEvent);

impl Ring {
    /// A ring of `elements` elements of `dtype` on `device`, and `slabs` to copy into it, on a stream of their own or
    /// on the compute stream.
    ///
    /// # Errors
    /// [`Error::Driver`] and [`Error::Candle`] where an allocation fails.
    pub fn new(
        device: &Device,
        dtype: DType,
        elements: usize,
        slabs: Vec<Arc<HostSlab>>,
        own_stream: bool,
    ) -> Result<Self> {
        let gpu = device.as_cuda_device()?;
        let compute = gpu.cuda_stream();
        let memory = output("stream", None, &[elements], dtype, &[], gpu)?;
        // The fork waits for the allocation, which is work of the compute stream.
        let copies = if own_stream { compute.fork().map_err(driver)? } else { compute.clone() };
        let is_pinned = slabs.iter().all(|slab| slab.is_pinned());
        let reads = slabs.iter().any(|slab| matches!(slab.0, Memory::Read(..)));
        let staging = if is_pinned { None } else { Some(StagingThreads::start(&copies, reads)?) };
        let (base, bytes) = (address(&memory)?, elements * dtype.size_in_bytes());
        Ok(Self { slabs, staging, memory, base, bytes, compute, copies })
    }

    /// The memory of the ring, flat. Only the ranges that copies have filled are initialized.
    pub fn tensor(&self) -> &Tensor {
        &self.memory
    }

    /// Starts copying the bytes `part` of slab number `slab` to `offset` bytes from the start of the ring, after the work
    /// before the points `after`. The host waits for nothing: where slabs are in pageable memory, a thread stages and submits the
    /// copies in their order.
    ///
    /// # Errors
    /// [`Error::Config`] for a number without a slab, bytes that it does not have, or a part that does not fit there;
    /// [`Error::Driver`].
    pub fn copy(&mut self, slab: usize, part: Range<usize>, offset: usize, after: &[Arc<Point>]) -> Result<Copy> {
        let outside = || Error::Config { op: "stream", message: format!("slab {slab} does not fit at {offset}") };
        let source = self.slabs.get(slab).ok_or_else(outside)?;
        let len = match &source.0 {
            Memory::Pinned(block) => block.len(),
            Memory::Pageable(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Memory::Read(bytes, _) => *bytes,
        };
        let fits = part.start <= part.end && part.end <= len;
        if !fits || offset.checked_add(part.len()).is_none_or(|end| end > self.bytes) {
            return Err(outside());
        }
        let to = self.base + offset as u64;
        let copy = Arc::new(Submission::new());
        if let Some(staging) = &self.staging {
            let (slab, after) = (source.clone(), after.to_vec());
            staging.submit(Task { slab, part, to, after, copy: copy.clone() });
            return Ok(Copy(copy));
        }
        let Memory::Pinned(block) = &source.0 else { return Err(outside()) };
        let copies = &self.copies;
        let events = submitted(copies, after, || {
            // SAFETY: the range is inside of the ring, whose memory and the block live until this value is dropped,
            // which waits for the copy; nothing writes the block meanwhile.
            unsafe { result::memcpy_htod_async(to, &block[part], copies.cu_stream()) }.map_err(driver)
        })?;
        let _ = copy.set(Ok(events)); // no one else has it yet
        Ok(Copy(copy))
    }

    /// Lets all later work of the compute stream wait for a copy. The host waits until the copy is submitted, if it is staged.
    ///
    /// # Errors
    /// [`Error::Driver`], also where the copy could not be submitted.
    pub fn wait(&self, copy: &Copy) -> Result<()> {
        self.compute.wait(&copy.events()?.end).map_err(driver)
    }

    /// The point after the work that was submitted to the compute stream so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn point(&self) -> Result<Point> {
        timed(&self.compute).map(Point)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.staging = None; // it submits what it was given
        // Copies read the slabs and write the ring, whose memory is freed in the order of the compute stream only.
        if let Err(error) = self.copies.synchronize() {
            tracing::warn!("copying weights: {error}");
        }
    }
}

impl Copy {
    /// Its events. The host waits until it is submitted.
    fn events(&self) -> Result<&Events> {
        self.0.wait().as_ref().map_err(|problem| Error::Driver(problem.clone()))
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_done(&self) -> Result<bool> {
        if self.0.get().is_some() { is_done(&self.events()?.end) } else { Ok(false) }
    }

    /// Seconds that it took, without waiting for earlier work. The host waits for its end.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn seconds(&self) -> Result<f64> {
        let Events { start, end } = self.events()?;
        between(start, end)
    }

    /// Seconds from `point` to its end, negative where it ended before. The host waits for both.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn seconds_after(&self, point: &Point) -> Result<f64> {
        between(&point.0, &self.events()?.end)
    }

    /// Seconds from the end of an earlier copy to its end. The host waits for both.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn seconds_after_copy(&self, earlier: &Self) -> Result<f64> {
        between(&earlier.events()?.end, &self.events()?.end)
    }
}

impl Point {
    /// Whether the GPU has reached it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_done(&self) -> Result<bool> {
        is_done(&self.0)
    }

    /// Seconds of the GPU's work from `earlier` to this point. The host waits for both.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn seconds_after(&self, earlier: &Self) -> Result<f64> {
        between(&earlier.0, &self.0)
    }
}

/// Has the copies' stream wait for the points `after`, and do what `copy` submits, with an event before and after it.
fn submitted(copies: &CudaStream, after: &[Arc<Point>], copy: impl FnOnce() -> Result<()>) -> Result<Events> {
    for point in after {
        copies.wait(&point.0).map_err(driver)?;
    }
    let start = timed(copies)?;
    copy()?;
    Ok(Events { start, end: timed(copies)? })
}

/// An event with a timestamp: without flags, unlike cudarc's default.
fn timed(stream: &CudaStream) -> Result<CudaEvent> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver)
}

fn is_done(event: &CudaEvent) -> Result<bool> {
    event.context().bind_to_thread().map_err(driver)?;
    event.try_is_complete().map_err(driver)
}

fn between(start: &CudaEvent, end: &CudaEvent) -> Result<f64> {
    Ok(f64::from(start.elapsed_ms(end).map_err(driver)?) * 1e-3)
}

/// Writes the elements of a flat tensor as bytes.
pub(super) fn write_bytes(slab: &Tensor, to: &mut [u8]) -> Result<()> {
    bytes_of(slab, |bytes| {
        to.par_chunks_mut(MOVED).zip(bytes.par_chunks(MOVED)).for_each(|(to, from)| to.copy_from_slice(from));
    })
}

/// Passes the elements of a flat CPU tensor to `show` as bytes.
fn bytes_of<R>(tensor: &Tensor, show: impl FnOnce(&[u8]) -> R) -> Result<R> {
    fn bytes<T>(values: &[T]) -> &[u8] {
        // SAFETY: the callers below pass numbers, which have no padding, so every byte is initialized.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }
    let (storage, layout) = tensor.storage_and_layout();
    let bytes = match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => bytes(values.as_slice()),
        Storage::Cpu(CpuStorage::F16(values)) => bytes(values.as_slice()),
        Storage::Cpu(CpuStorage::BF16(values)) => bytes(values.as_slice()),
        _ => {
            return Err(Error::Config {
                op: "stream",
                message: "expected a slab in f32, f16 or bf16 on the CPU".into(),
            });
        }
    };
    let size = tensor.dtype().size_in_bytes();
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or_else(|| Error::Config { op: "stream", message: "expected a contiguous slab".into() })?;
    Ok(show(&bytes[start * size..end * size]))
}
