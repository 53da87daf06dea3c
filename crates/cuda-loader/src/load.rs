//! The state of a process: which libraries it has loaded.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::hint;
use crate::library::Library;
use crate::places::{self, Environment};
use crate::{functions, unused};

/// The libraries that every use of a GPU needs.
#[derive(Debug)]
pub struct Loaded {
    /// The newest CUDA version that the driver supports (13.0 is 13000).
    pub driver_version: i32,
    driver: Library,
    cublas: Library,
    cublas_lt: Library,
}

impl Loaded {
    /// The files of the driver, cuBLAS and cuBLASLt.
    pub fn paths(&self) -> [&Path; 3] {
        [self.driver.path(), self.cublas.path(), self.cublas_lt.path()]
    }
}

/// Loads the driver, cuBLAS and cuBLASLt, at the first call.
///
/// # Errors
/// An error names the library that is missing and a command that installs it. A process tries once.
pub fn load() -> Result<&'static Loaded, Error> {
    static LOADED: OnceLock<Result<Loaded>> = OnceLock::new();
    LOADED.get_or_init(|| open(&Environment::of_this_process())).as_ref().map_err(Clone::clone)
}

/// cuDNN, loaded at the first call. `KILN_CUDNN=off` leaves it out, so that a machine that has it tests and measures
/// convolutions without it.
///
/// # Errors
/// [`Error::Off`], [`Error::NotFound`] or [`Error::Broken`]. A process tries once.
pub fn cudnn() -> Result<&'static Library, Error> {
    static CUDNN: OnceLock<Result<Library>> = OnceLock::new();
    let open = || {
        if std::env::var_os("KILN_CUDNN").is_some_and(|value| value == "off") {
            return Err(Error::Off { name: "cuDNN", variable: "KILN_CUDNN" });
        }
        let environment = Environment::of_this_process();
        find("cuDNN", "cudnn", &[9], &environment)
    };
    CUDNN.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open(environment: &Environment) -> Result<Loaded> {
    std::hint::black_box(&unused::ALL); // a reference, without which the linker leaves them out
    let driver = Library::open(places::driver())?.ok_or_else(|| Error::NoDriver(hint::driver()))?;
    // SAFETY: the library is the driver, by its name.
    unsafe {
        driver.connect_all(functions::START)?;
        driver.connect(functions::DRIVER);
        driver.connect(functions::ALLOCATION);
    }
    let driver_version = version(&driver)?;
    // A library is not newer than the driver that it runs on.
    let newest = driver_version / 1000;
    let versions: Vec<i32> = [13, 12].into_iter().filter(|&version| version <= newest).collect();
    if versions.is_empty() {
        return Err(Error::NoDriver(format!(
            "it supports CUDA {newest}, and 12 or newer is needed: update the driver"
        )));
    }
    let cublas_lt = find("cuBLASLt", "cublasLt", &versions, environment)?;
    // SAFETY: the library is cuBLASLt, by its name.
    unsafe { cublas_lt.connect_all(functions::CUBLAS_LT)? };
    let cublas = find("cuBLAS", "cublas", &versions, environment)?;
    // SAFETY: the library is cuBLAS, by its name.
    unsafe { cublas.connect_all(functions::CUBLAS)? };
    Ok(Loaded { driver_version, driver, cublas, cublas_lt })
}

/// Loads the newest of `versions` of a library that is found.
fn find(name: &'static str, stem: &str, versions: &[i32], environment: &Environment) -> Result<Library> {
    for &version in versions {
        let files: Vec<PathBuf> = places::files(stem, version, environment);
        if let Some(library) = Library::open(files)? {
            return Ok(library);
        }
    }
    Err(Error::NotFound { name, command: hint::command(environment, versions.first().copied().unwrap_or(13)) })
}

/// The newest CUDA version that the driver supports.
fn version(driver: &Library) -> Result<i32> {
    let name = "cuDriverGetVersion";
    // SAFETY: the driver's function of this name has this signature (`cuda.h`).
    let get = unsafe { driver.function::<unsafe extern "C" fn(*mut c_int) -> c_int>(name)? };
    let mut version = 0;
    // SAFETY: the version is written through a pointer to a live variable.
    match unsafe { get(&raw mut version) } {
        0 => Ok(version),
        code => Err(Error::NoDriver(format!("{name} failed with error {code}"))),
    }
}
