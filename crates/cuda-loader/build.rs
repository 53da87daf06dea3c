//! Empty libraries for the linker.
//!
//! cudarc asks to be linked with CUDA's libraries. This crate defines the functions of them that are called, so the
//! libraries themselves need not be there, and a program must not depend on them.

use std::error::Error;
use std::path::PathBuf;

/// The libraries that cudarc and candle's kernels name.
const LIBRARIES: [&str; 6] = ["cuda", "cublas", "cublasLt", "curand", "nvrtc", "cudart"];
/// An archive without members.
const EMPTY: &str = "!<arch>\n";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let is_msvc = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "msvc");
    for library in LIBRARIES {
        let name = if is_msvc { format!("{library}.lib") } else { format!("lib{library}.a") };
        std::fs::write(out.join(name), EMPTY)?;
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    Ok(())
}
