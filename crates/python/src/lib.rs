//! The compiled part of the Python module `kiln`.
//!
//! The Python files in `python/kiln` are what users import. They turn keywords into an object of JSON, which is read as a line of
//! a job file, and images into files; this crate runs engines without the lock of the interpreter, hands out images without a copy,
//! and turns errors into exceptions. It knows no options by name: those of a request are the rows of
//! [`kiln_engine::OPTIONS`], those of an engine the rows of `engine_options`.
//!
//! The library shares its process with others, such as PyTorch. It has threads of its own for each engine, a memory pool of its
//! own, and changes no setting of the process.
//!
//! `Engine` holds the engine behind a lock, and is waited for without the interpreter's lock. `Watcher` is the callback
//! of a call: it looks for signals on the main thread, calls Python's callbacks and keeps their exceptions. `Elements`
//! is memory that NumPy and DLPack share. As a guest in the process, an engine always has threads of its own, and the
//! pool leaves the C library's allocator alone. Cargo links it with no Python (`PYO3_NO_PYTHON` in
//! `.cargo/config.toml`), so that the workspace builds without one; what of it needs no Python is tested by
//! `crates/python/tests`, the rest by `tests/python`.

mod batch;
mod call;
mod elements;
mod engine;
mod engine_options;
mod error;
mod image;
mod python_types;
mod reports;
mod rng;
mod server;
mod steering;

use pyo3::prelude::*;

/// Memory of tensors is reused from step to step.
#[global_allocator]
static ALLOCATOR: kiln_engine::HostPool = kiln_engine::HostPool;

/// The compiled part of Kiln. Import `kiln` instead.
#[pymodule]
mod _kiln {
    #[pymodule_export]
    use crate::call::Stop;
    #[pymodule_export]
    use crate::elements::{Elements, elements};
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::image::{Generated, generated, write_png};
    #[pymodule_export]
    use crate::reports::{devices, inspect, options};
    #[pymodule_export]
    use crate::rng::Rng;
    #[pymodule_export]
    use crate::server::Server;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        kiln_engine::HostPool::leave_system_allocator();
        #[cfg(feature = "small-model")]
        kiln_models::set_built_in(kiln_small_model::folder);
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
