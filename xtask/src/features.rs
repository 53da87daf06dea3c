//! The features of dependencies, which must be those of the whole workspace for every selection of crates.
//!
//! cargo unifies features over the crates that a command selects. If a selection has a crate with fewer features, cargo
//! builds that crate again, and everything above it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Result;
use crate::workspace::cargo_output;

/// Crates that are built alone too: by `cargo run`, and for the Python module.
const SELECTIONS: [&str; 2] = ["kiln-cli", "kiln-python"];

/// Fails if a dependency of one of [`SELECTIONS`] has other features there than in the whole workspace.
pub fn check() -> Result {
    let all = features(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut wrong = Vec::new();
    for selection in SELECTIONS {
        for (package, sets) in features(&["--package", selection, "--edges", "normal,build"])? {
            let usual = all.get(&package).cloned().unwrap_or_default();
            for set in sets.difference(&usual) {
                let usual: Vec<&str> = usual.iter().map(String::as_str).collect();
                wrong.push(format!(
                    "{package} for {selection} has `{set}`, in the workspace `{}`",
                    usual.join("` or `")
                ));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let advice = "name the missing features in the workspace's Cargo.toml, or it and all above it are built twice";
    Err(format!("{}\n{advice}", wrong.join("\n")).into())
}

/// The sets of features with which each dependency is built for a selection.
fn features(selection: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let shown = ["tree", "--locked", "--prefix", "none", "--format", "{p}|{f}"];
    let output = cargo_output(&[&shown, selection].concat())?;
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in output.lines() {
        let (package, features) = line.trim_end_matches(" (*)").split_once('|').unwrap_or((line, ""));
        let name: Vec<&str> = package.split(' ').take(2).collect(); // without `(proc-macro)` and paths
        found.entry(name.join(" ")).or_default().insert(features.trim().into());
    }
    Ok(found)
}
