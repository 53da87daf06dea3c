//! The packages of the workspace and of everything that it depends on, as `cargo metadata` lists them.

use std::path::PathBuf;

use serde::Deserialize;

use crate::Result;
use crate::workspace::cargo_output;

/// The part of `cargo metadata` that the checks read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// One version of a package.
#[derive(Debug, Default, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// An SPDX expression; `/` is an old form of `OR`.
    pub license: Option<String>,
    /// The file that the package names as its license.
    pub license_file: Option<PathBuf>,
    /// `None` for packages of this workspace.
    pub source: Option<String>,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// The path of its `Cargo.toml`.
    #[serde(default)]
    pub manifest_path: PathBuf,
}

/// All packages that `Cargo.lock` names, for all platforms and features.
///
/// # Errors
/// If cargo fails, or `Cargo.lock` is outdated.
pub fn packages() -> Result<Vec<Package>> {
    let output = cargo_output(&["metadata", "--locked", "--all-features", "--format-version", "1"])?;
    Ok(serde_json::from_str::<Metadata>(&output)?.packages)
}
