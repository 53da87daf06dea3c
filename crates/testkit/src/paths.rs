//! Where test data lies.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn repository() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A test program that was built elsewhere finds the checkout that it is run in. Crates have folders of fixtures too,
    // but the models are in the root alone.
    let current = std::env::current_dir().unwrap_or_default();
    let mut candidates = std::iter::once(sources.as_path()).chain(current.ancestors());
    let root = candidates.find(|folder| folder.join("tests/fixtures/models").is_dir()).unwrap_or(&sources);
    root.canonicalize().unwrap_or_else(|_| root.to_path_buf())
}

/// `tests/fixtures/{name}`.
pub fn fixtures(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

/// The environment variable with the folder of the reference data, where that is not `../shared` of the checkout.
const SHARED: &str = "KILN_SHARED";

/// `data/{name}` of the reference data that may lie beside the checkout. The tests that need it are ignored unless they are
/// asked for (`--ignored shared_data`), so that a test which has nothing to compare does not pass.
///
/// # Panics
/// Where it is missing.
#[track_caller]
pub fn shared_data(name: &str) -> PathBuf {
    shared("data", name)
}

/// `models/{name}` of the same.
///
/// # Panics
/// Where it is missing.
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
