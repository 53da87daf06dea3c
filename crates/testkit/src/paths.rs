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

/// `data/{name}` of the reference data that may lie beside the checkout. Where it does not, prints that the test is
/// skipped and gives `None`.
pub fn shared_data(name: &str) -> Option<PathBuf> {
    shared("data", name)
}

/// `models/{name}` of the reference data that may lie beside the checkout.
pub fn shared_models(name: &str) -> Option<PathBuf> {
    shared("models", name)
}

fn shared(folder: &str, name: &str) -> Option<PathBuf> {
    let path = repository().join("../shared").join(folder).join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: shared/{folder}/{name} is not beside the checkout");
    None
}
