//! Pinned memory from CUDA's driver.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::result::{free_host, malloc_host};
use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED, CUresult};

use super::{Chunk, Source};
use crate::error::{Error, Result};

struct Driver {
    context: Arc<CudaContext>,
    ordinal: usize,
    flags: u32,
}

pub(super) fn source(ordinal: usize, write_combined: bool) -> Result<Box<dyn Source>> {
    let opening = |error| Error::driver(ordinal, "opening the GPU", error);
    let context = CudaContext::new(ordinal).map_err(opening)?;
    // Portable: pinned for all contexts.
    let flags = CU_MEMHOSTALLOC_PORTABLE | if write_combined { CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 };
    Ok(Box::new(Driver { context, ordinal, flags }))
}

impl Source for Driver {
    fn lock(&self, bytes: usize) -> Result<Chunk> {
        let failed = |error: cudarc::driver::DriverError| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::OutOfMemory { pool: "pinned", requested: bytes as u64, used: 0, ceiling: None }
            }
            _ => Error::driver(self.ordinal, "pinning host memory", error),
        };
        self.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the context is bound; the chunk that gets the memory frees it.
        let start = unsafe { malloc_host(bytes, self.flags) }.map_err(failed)?;
        let context = self.context.clone();
        let release = move |start: *mut u8, _len| {
            // SAFETY: the memory is from `malloc_host`, and only the chunk owns it.
            let freed = context.bind_to_thread().and_then(|()| unsafe { free_host(start.cast()) });
            debug_assert!(freed.is_ok(), "freeing pinned memory: {freed:?}");
        };
        Ok(Chunk { start: start.cast(), len: bytes, release: Box::new(release) })
    }
}
