//! The location of test data.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn repository() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A test program that was built elsewhere uses the checkout in its current folder. Crates have folders of fixtures
    // too, but only the root has the models.
    let current = std::env::current_dir().unwrap_or_default();
    let mut candidates = std::iter::once(sources.as_path()).chain(current.ancestors());
    let root = candidates.find(|folder| folder.join("tests/fixtures/models").is_dir()).unwrap_or(&sources);
    root.canonicalize().unwrap_or_else(|_| root.to_path_buf())
}

/// `tests/fixtures/{name}`.
pub fn fixtures(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

/// The environment variable with the folder of the reference data, if it is not `../shared` of the checkout.
const SHARED: &str = "KILN_SHARED";

/// `data/{name}` of the optional reference data next to the checkout. The tests that need it are ignored by default
/// (`--ignored shared_data` runs them), so that a test without data does not pass.
///
/// # Panics
/// If it is missing.
#[track_caller]
pub fn shared_data(name: &str) -> PathBuf {
    shared("data", name)
}

/// `models/{name}` of the reference data.
///
/// # Panics
/// If it is missing.
#[track_caller]
pub fn shared_models(name: &str) -> PathBuf {
    shared("models", name)
}

#[track_caller]
fn shared(folder: &str, name: &str) -> PathBuf {
    let root = std::env::var_os(SHARED).map_or_else(|| repository().join("../shared"), PathBuf::from);
    let path = root.join(folder).join(name);
    assert!(path.exists(), "{} is missing: this test needs the reference data, see {SHARED}", path.display());
    path
}
