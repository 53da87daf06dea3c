//! cuDNN's functions, loaded on first use: a build runs without cuDNN, only slower.

use std::ffi::{CStr, c_char, c_void};

use crate::error::{Error, Result};

/// A handle, a descriptor or a stream of the library.
pub(super) type Raw = *mut c_void;
type Status = i32;
/// `CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED`, and `.._HOST_..` (`cudnn_graph.h`).
const NO_MEMORY: [Status; 2] = [4004, 4003];

/// The functions of cuDNN 9's graph interface that convolutions need (`cudnn_graph.h`).
pub(super) struct Api {
    create: unsafe extern "C" fn(*mut Raw) -> Status,
    set_stream: unsafe extern "C" fn(Raw, Raw) -> Status,
    create_descriptor: unsafe extern "C" fn(i32, *mut Raw) -> Status,
    pub(super) destroy_descriptor: unsafe extern "C" fn(Raw) -> Status,
    pub(super) finalize: unsafe extern "C" fn(Raw) -> Status,
    pub(super) set_attribute: unsafe extern "C" fn(Raw, i32, i32, i64, *const c_void) -> Status,
    pub(super) get_attribute: unsafe extern "C" fn(Raw, i32, i32, i64, *mut i64, *mut c_void) -> Status,
    pub(super) execute: unsafe extern "C" fn(Raw, Raw, Raw) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
}

impl Api {
    /// The library, which stays loaded, or the reason why it cannot be loaded.
    pub(super) fn load() -> Result<Self, kiln_cuda_loader::Error> {
        let library = kiln_cuda_loader::cudnn()?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type of the field is that of the function in cuDNN 9's header.
                unsafe { library.function($name)? }
            };
        }
        Ok(Self {
            create: function!("cudnnCreate"),
            set_stream: function!("cudnnSetStream"),
            create_descriptor: function!("cudnnBackendCreateDescriptor"),
            destroy_descriptor: function!("cudnnBackendDestroyDescriptor"),
            finalize: function!("cudnnBackendFinalize"),
            set_attribute: function!("cudnnBackendSetAttribute"),
            get_attribute: function!("cudnnBackendGetAttribute"),
            execute: function!("cudnnBackendExecute"),
            error_string: function!("cudnnGetErrorString"),
        })
    }

    /// A handle for the current context that launches on `stream`.
    pub(super) fn handle(&self, stream: Raw) -> Result<Raw> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is written through a pointer to a live variable.
        self.check(unsafe { (self.create)(&raw mut handle) })?;
        // SAFETY: the handle was just created, and the stream belongs to the same context.
        self.check(unsafe { (self.set_stream)(handle, stream) })?;
        Ok(handle)
    }

    pub(super) fn descriptor(&self, kind: i32) -> Result<Raw> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the descriptor is written through a pointer to a live variable.
        self.check(unsafe { (self.create_descriptor)(kind, &raw mut raw) })?;
        Ok(raw)
    }

    pub(super) fn check(&self, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        if NO_MEMORY.contains(&status) {
            return Err(Error::LibraryMemory("cuDNN"));
        }
        // SAFETY: for any number the library returns a static text that ends with a zero.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(Error::Driver(format!("cuDNN: {}", text.to_string_lossy())))
    }
}
