//! Counts lines by crate and file, and checks where `unsafe` is used.
//!
//! A file has one concept and 50 to 400 lines. Over 600 lines the check warns, over 1,000 it fails.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::code::count_word;
use crate::workspace::{read, root};

const WARN_LINES: usize = 600;
const MAX_LINES: usize = 1000;
/// The places where `unsafe` is allowed: kernels of both kinds, memory pools, the functions of CUDA's libraries, one file that maps
/// files into memory, and one that shares memory with Python.
const UNSAFE_PLACES: [&str; 6] = [
    "crates/ops/",
    "crates/mempool/",
    "crates/cuda-loader/",
    "crates/weights/src/mmap.rs",
    "crates/wgpu/src/",
    "crates/python/src/elements.rs",
];

/// A source file.
struct Source {
    /// Its path below the root, with forward slashes.
    path: String,
    lines: usize,
    unsafes: usize,
}

/// Prints the sizes. Fails if a file is too large, or has `unsafe` without permission.
pub fn check(every_file: bool) -> Result {
    let root = root();
    let mut crates: Vec<PathBuf> =
        std::fs::read_dir(root.join("crates"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    crates.push(root.join("xtask"));
    crates.sort();
    println!("{:20} {:>6} {:>6} {:>7}  largest file", "crate", "files", "lines", "unsafe");
    let mut all = Vec::new();
    for folder in crates.iter().filter(|folder| folder.join("Cargo.toml").exists()) {
        let mut files = sources(&root, folder)?;
        files.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.path.cmp(&b.path)));
        let sum = |of: fn(&Source) -> usize| files.iter().map(of).sum::<usize>();
        let largest = files.first().map_or(String::new(), |file| format!("{:4} {}", file.lines, file.path));
        let name = relative(&root, folder);
        println!("{name:20} {:6} {:6} {:7}  {largest}", files.len(), sum(|f| f.lines), sum(|f| f.unsafes));
        if every_file {
            files.iter().for_each(|file| println!("    {:4} {}", file.lines, file.path));
        }
        all.append(&mut files);
    }
    println!("{:20} {:6} {:6}", "all", all.len(), all.iter().map(|file| file.lines).sum::<usize>());
    for file in all.iter().filter(|file| (WARN_LINES + 1..=MAX_LINES).contains(&file.lines)) {
        println!("warning: {} has {} lines; over {WARN_LINES} it should be split", file.path, file.lines);
    }
    let wrong = wrong(&all);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n       ").into()) }
}

/// The rule that each file breaks, for all files that break one.
fn wrong(files: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Source { path, lines, unsafes } in files {
        if *lines > MAX_LINES {
            wrong.push(format!("{path} has {lines} lines, more than {MAX_LINES}; split it"));
        }
        if *unsafes > 0 && !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
            wrong.push(format!("{path} has `unsafe`, which is allowed only in {}", UNSAFE_PLACES.join(", ")));
        }
    }
    wrong
}

/// The Rust and CUDA sources below `folder`.
fn sources(root: &Path, folder: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut sources(root, &path)?);
        } else if path.extension().is_some_and(|end| ["rs", "cu", "cuh"].iter().any(|known| end == *known)) {
            let text = read(&path)?;
            let unsafes = count_word(&text, "unsafe");
            found.push(Source { path: relative(root, &path), lines: text.lines().count(), unsafes });
        }
    }
    Ok(found)
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_and_misplaced_unsafe_are_refused() {
        let file = |path: &str, lines, unsafes| Source { path: path.into(), lines, unsafes };
        let allowed = [
            file("crates/ops/src/cpu/gemm.rs", 1000, 3),
            file("crates/mempool/src/host.rs", 1, 1),
            file("crates/weights/src/mmap.rs", 1, 1),
        ];
        assert!(wrong(&allowed).is_empty());
        let refused = [file("crates/nn/src/linear.rs", 1001, 0), file("crates/weights/src/load.rs", 1, 1)];
        let messages = wrong(&refused);
        assert!(messages[0].starts_with("crates/nn/src/linear.rs has 1001 lines"), "{messages:?}");
        assert!(messages[1].starts_with("crates/weights/src/load.rs has `unsafe`"), "{messages:?}");
    }
}
