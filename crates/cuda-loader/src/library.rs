//! A library that is loaded and stays loaded.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::forward::Function;

/// A loaded library. It is never unloaded: functions of it are called until the process ends.
#[derive(Debug)]
pub struct Library {
    handle: &'static libloading::Library,
    path: PathBuf,
}

impl Library {
    /// Loads the first of `files` that exists: full paths, or bare names for the system's loader to find. `None` if none
    /// of them exists.
    ///
    /// # Errors
    /// [`Error::Broken`] if a file at a full path does not load.
    pub(crate) fn open(files: impl IntoIterator<Item = PathBuf>) -> Result<Option<Self>> {
        for path in files {
            let is_name = path.components().count() == 1;
            if !is_name && !path.is_file() {
                continue;
            }
            // SAFETY: the initializers of NVIDIA's libraries have no preconditions.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => {
                    tracing::debug!("loaded {}", path.display());
                    return Ok(Some(Self { handle: Box::leak(Box::new(library)), path }));
                }
                Err(_) if is_name => {}
                Err(error) => {
                    // The loader's own message is behind that of the crate.
                    let reason =
                        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    return Err(Error::Broken { path, reason });
                }
            }
        }
        Ok(None)
    }

    /// The file, or the bare name with which the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A function of the library.
    ///
    /// # Errors
    /// [`Error::NoFunction`].
    ///
    /// # Safety
    /// `F` is a pointer to a function with the signature that the library documents for this name.
    pub unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F> {
        // SAFETY: by the contract of this method.
        let symbol = unsafe { self.handle.get::<F>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|_| Error::NoFunction { path: self.path.clone(), function: name })
    }

    /// Sets where `functions` jump to. Those that the library lacks keep their error.
    ///
    /// # Safety
    /// This is the library that the functions belong to.
    pub(crate) unsafe fn connect(&self, functions: &[Function]) {
        for function in functions {
            // SAFETY: the address is not called here. By the contract of this method it is that of the function, and
            // the library is never unloaded.
            unsafe {
                if let Ok(address) = self.function::<*mut c_void>(function.name) {
                    function.set(address);
                }
            }
        }
    }

    /// Sets where `functions` jump to, all of which are needed.
    ///
    /// # Safety
    /// See [`Self::connect`].
    pub(crate) unsafe fn connect_all(&self, functions: &[Function]) -> Result<()> {
        for function in functions {
            // SAFETY: as in `connect`.
            unsafe { function.set(self.function::<*mut c_void>(function.name)?) };
        }
        Ok(())
    }
}
