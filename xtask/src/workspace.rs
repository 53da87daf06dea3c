//! The checkout, and commands that run in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The repository's root.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap_or(root)
}

/// Reads a text file. An error contains its path.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Runs a command in the root, with its output passed through.
pub fn run(program: &str, args: &[&str], env: &[(&str, &OsStr)]) -> Result {
    let status = Command::new(program).args(args).envs(env.iter().copied()).current_dir(root()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {}: {status}", args.join(" ")).into()) }
}

/// The output of cargo in the root.
///
/// # Errors
/// The messages of cargo, if it fails.
pub fn cargo_output(args: &[&str]) -> Result<String> {
    let output = Command::new(cargo()).args(args).current_dir(root()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => {
            let name = args.first().copied().unwrap_or_default();
            Err(format!("cargo {name}: {}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }
}

/// The path of the cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}
