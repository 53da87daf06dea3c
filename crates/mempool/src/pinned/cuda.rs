//! Page-locked memory from CUDA's driver.
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
    let opening = |error| Error::driver(ordinal, "opening the card", error);
    let context = CudaContext::new(ordinal).map_err(opening)?;
    // Portable: locked for every context, whichever thread copies.
    let flags = CU_MEMHOSTALLOC_PORTABLE | if write_combined { CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 };
    Ok(Box::new(Driver { context, ordinal, flags }))
}

impl Source for Driver {
    fn lock(&self, bytes: usize) -> Result<Chunk> {
        let failed = |error: cudarc::driver::DriverError| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::OutOfMemory { pool: "page-locked", asked: bytes as u64, used: 0, ceiling: None }
            }
            _ => Error::driver(self.ordinal, "locking host memory", error),
        };
        self.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the context is bound; the memory is freed by the chunk that gets it.
        let start = unsafe { malloc_host(bytes, self.flags) }.map_err(failed)?;
        let context = self.context.clone();
        let release = move |start: *mut u8, _len| {
            // SAFETY: the memory is the driver's, from `malloc_host`, and the chunk is its only owner.
            let freed = context.bind_to_thread().and_then(|()| unsafe { free_host(start.cast()) });
            debug_assert!(freed.is_ok(), "unlocking host memory: {freed:?}");
        };
        Ok(Chunk { start: start.cast(), len: bytes, release: Box::new(release) })
    }
}
