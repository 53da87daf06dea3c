//! With the feature `cuda`: compiles every operator's `kernel.cu` into a fat binary, which the crate embeds.
//!
//! `KILN_CUDA_ARCHS` (`75,80,86,89,90,100,120`) lists the architectures of a build for distribution. It also gets PTX of the
//! newest one, which drivers compile for later GPUs. Otherwise the code is for one architecture: `CUDA_COMPUTE_CAP`, or
//! that of the installed GPU.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The headers that kernels share.
const HEADERS: &str = "src/cuda";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    for variable in ["KILN_CUDA_ARCHS", "CUDA_COMPUTE_CAP", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let (targets, code) = targets()?;
    println!("cargo::rustc-env=KILN_CUDA_CODE={code}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let headers = headers()?;
    let mut changed = Vec::new();
    for (name, source) in kernels()? {
        let key = key(&source, &headers, &targets)?;
        let is_kept = out.join(format!("{name}.fatbin")).exists()
            && std::fs::read_to_string(key_file(&out, &name)).is_ok_and(|kept| kept == key);
        if !is_kept {
            changed.push((name, source, key));
        }
    }
    for kernels in changed.chunks(jobs) {
        let running = kernels.iter().map(|(name, source, _)| {
            let object = out.join(format!("{name}.fatbin"));
            let mut nvcc = Command::new(nvcc());
            // Multiplications and additions may fuse; divisions, roots and subnormal numbers stay exact. Kernels call
            // fast intrinsics by name where their error bounds allow it.
            nvcc.args(["-fatbin", "-O3", "-std=c++17", "-Werror", "all-warnings", "-I", HEADERS]);
            // The driver unpacks what it loads. Code for seven architectures takes an eighth of the default's size.
            nvcc.arg("--compress-mode=size").args(&targets);
            let child = nvcc.arg("-o").arg(object).arg(source).spawn();
            child.map_err(|error| format!("{:?}: {error}; set CUDA_HOME to a CUDA toolkit", nvcc.get_program()))
        });
        for (child, (name, _, key)) in running.collect::<Vec<_>>().into_iter().zip(kernels) {
            let status = child?.wait()?;
            if !status.success() {
                return Err(format!("nvcc failed on the kernels of {name}: {status}").into());
            }
            std::fs::write(key_file(&out, name), key)?;
        }
    }
    Ok(())
}

/// The operators' kernels: the names of their folders, and the sources.
fn kernels() -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    println!("cargo::rerun-if-changed=src"); // a new kernel, a shared header
    for entry in std::fs::read_dir("src")? {
        let folder = entry?.path();
        let source = folder.join("kernel.cu");
        if let (true, Some(name)) = (source.exists(), folder.file_name()) {
            found.push((name.to_string_lossy().into_owned(), source));
        }
    }
    found.sort();
    Ok(found)
}

/// The file with the key of an operator's fat binary, written after it.
fn key_file(out: &Path, name: &str) -> PathBuf {
    out.join(format!("{name}.key"))
}

/// All that a fat binary is made from. One with the same key is kept: an edit of Rust code compiles no kernel, which takes
/// minutes for a list of architectures.
fn key(source: &Path, headers: &str, targets: &[String]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    (std::fs::read(source)?, headers, targets, nvcc(), std::fs::read("build.rs")?).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// The texts of the headers that kernels include.
fn headers() -> Result<String> {
    let mut paths = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "cuh" => paths.push(path),
                _ => {}
            }
        }
    }
    paths.sort();
    let texts: Vec<String> = paths.iter().map(std::fs::read_to_string).collect::<std::io::Result<_>>()?;
    Ok(texts.concat())
}

fn nvcc() -> PathBuf {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let mut places = homes.map(|home| Path::new(&home).join("bin/nvcc"));
    places.find(|nvcc| nvcc.exists()).unwrap_or_else(|| "nvcc".into())
}

/// nvcc's arguments for the architectures, and their list for the crate: `90` is machine code, `90+` PTX.
fn targets() -> Result<(Vec<String>, String)> {
    let list = std::env::var("KILN_CUDA_ARCHS").ok();
    let mut archs = match &list {
        Some(list) => list.split(',').map(arch).collect::<Result<Vec<_>>>()?,
        None => vec![one_arch()?],
    };
    archs.sort_unstable();
    archs.dedup();
    let mut targets = Vec::new();
    for arch in &archs {
        // Warp-group products and their register budgets exist only in Hopper's architecture-specific variant.
        let variant = if *arch == 90 { "a" } else { "" };
        targets.push(format!("-gencode=arch=compute_{arch}{variant},code=sm_{arch}{variant}"));
    }
    let mut code: Vec<String> = archs.iter().map(u32::to_string).collect();
    if let (Some(_), Some(newest)) = (list, archs.last()) {
        targets.push(format!("-gencode=arch=compute_{newest},code=compute_{newest}"));
        code.push(format!("{newest}+"));
    }
    Ok((targets, code.join(",")))
}

fn one_arch() -> Result<u32> {
    if let Ok(cap) = std::env::var("CUDA_COMPUTE_CAP") {
        return arch(&cap);
    }
    let query = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    let text = query.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    match text.lines().next() {
        Some(line) if !line.is_empty() => arch(line),
        _ => Err("no GPU was found to build kernels for; set CUDA_COMPUTE_CAP, for example to 90".into()),
    }
}

/// `9.0` and `90` as 90.
fn arch(text: &str) -> Result<u32> {
    let digits = text.trim().replace('.', "");
    digits.parse().map_err(|_| format!("`{text}` is not a CUDA architecture, expected a value like 90 or 9.0").into())
}
