use std::path::PathBuf;

/// Why CUDA cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The driver is missing or cannot be loaded.
    #[error("NVIDIA's driver cannot be loaded: {0}")]
    NoDriver(String),
    /// A library is in none of the places that are searched.
    #[error("{name} was not found; `{command}` installs it, or set KILN_CUDA_LIBS to its folder")]
    NotFound {
        /// The library's name, as `cuBLASLt`.
        name: &'static str,
        /// A command that installs it in a place that is searched.
        command: String,
    },
    /// A library is not loaded by the choice of the user.
    #[error("{name} is off: {variable}=off")]
    Off {
        /// The library's name, as `cuDNN`.
        name: &'static str,
        /// The variable of the environment that says so.
        variable: &'static str,
    },
    /// A library was found and does not load.
    #[error("{path} cannot be loaded: {reason}")]
    Broken {
        /// Its file.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// A library lacks a function that Kiln needs.
    #[error("{path} has no function {function}: it is too old, or not the library of this name")]
    NoFunction {
        /// Its file.
        path: PathBuf,
        /// The function's name.
        function: &'static str,
    },
}

/// The result of this crate's functions.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
