//! The allowed imports between crates: only those on a lower floor.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Result;
use crate::workspace::cargo_output;

/// The floors of docs/architecture.md. Add a new crate here first.
const FLOORS: &[(&str, u8)] = &[
    ("kiln-cuda-loader", 0),
    ("kiln-files", 0),
    ("kiln-hub", 1),
    ("kiln-media", 1),
    ("kiln-mempool", 1),
    ("kiln-prompt", 1),
    ("kiln-self-update", 1),
    ("kiln-small-model", 1),
    ("kiln-ops", 2),
    ("kiln-testkit", 2),
    ("kiln-scheduler", 3),
    ("kiln-weights", 3),
    ("kiln-wgpu", 3),
    ("kiln-nn", 4),
    ("kiln-network", 5),
    ("kiln-clip", 6),
    ("kiln-dit", 6),
    ("kiln-qwen", 6),
    ("kiln-t5", 6),
    ("kiln-unet", 6),
    ("kiln-upscale", 6),
    ("kiln-vae", 6),
    ("kiln-families", 7),
    ("kiln-models", 8),
    ("kiln-request", 9),
    ("kiln-compare", 10),
    ("kiln-setup", 10),
    ("kiln-enlarge", 11),
    ("kiln-memory", 11),
    ("kiln-results", 11),
    ("kiln-engine", 12),
    ("kiln-batch", 13),
    ("kiln-bench", 13),
    ("kiln-serve", 14),
    ("kiln-cli", 15),
    ("kiln-fuzz", 15),
    ("kiln-python", 15),
    ("xtask", 15),
];
/// For tests only: any floor may import it as a dev-dependency, and not otherwise.
const TESTKIT: &str = "kiln-testkit";
/// The front ends, and our crates that they may import, none of which computes.
const FRONT_ENDS: [&str; 3] = ["kiln-cli", "kiln-python", "kiln-serve"];
const FOR_FRONT_ENDS: [&str; 11] = [
    "kiln-files",
    "kiln-self-update",
    "kiln-small-model",
    "kiln-media",
    "kiln-models",
    "kiln-request",
    "kiln-compare",
    "kiln-engine",
    "kiln-batch",
    "kiln-bench",
    "kiln-serve",
];

/// The part of `cargo metadata` that matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Missing for a normal dependency, `dev` or `build`.
    kind: Option<String>,
}

/// Fails for every dependency between our crates that the floors do not allow.
pub fn check() -> Result {
    let metadata: Metadata = serde_json::from_str(&cargo_output(&["metadata", "--no-deps", "--format-version", "1"])?)?;
    let wrong = wrong_edges(&metadata);
    if wrong.is_empty() {
        println!("floors: {} crates, every import goes down", metadata.packages.len());
        return Ok(());
    }
    Err(format!("the floors do not allow this (docs/architecture.md):\n  {}", wrong.join("\n  ")).into())
}

/// Describes every dependency that is not allowed, with the reason.
fn wrong_edges(metadata: &Metadata) -> Vec<String> {
    let floors: BTreeMap<&str, u8> = FLOORS.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let from = package.name.as_str();
        if !floors.contains_key(from) {
            wrong.push(format!("{from} has no floor; give it one in xtask/src/floors.rs"));
            continue;
        }
        for dependency in &package.dependencies {
            let to = dependency.name.as_str();
            if !metadata.packages.iter().any(|package| package.name == to) {
                continue; // not one of our crates
            }
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            if let Some(why) = forbidden(from, to, kind, &floors) {
                wrong.push(format!("{from} -> {to} ({kind}): {why}"));
            }
        }
    }
    wrong
}

/// The reason why `from` must not import `to`.
fn forbidden(from: &str, to: &str, kind: &str, floors: &BTreeMap<&str, u8>) -> Option<String> {
    if to == TESTKIT {
        return (kind != "dev").then(|| "it is for tests only; make it a dev-dependency".into());
    }
    let (above, below) = (*floors.get(from)?, *floors.get(to)?);
    if below == above {
        return Some(format!("both are on floor {above}, and crates of one floor do not import each other"));
    }
    if below > above {
        return Some(format!("floor {above} must not import floor {below}, which is above it"));
    }
    if FRONT_ENDS.contains(&from) && !FOR_FRONT_ENDS.contains(&to) {
        return Some(format!("a front end imports only {}", FOR_FRONT_ENDS.join(", ")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors for one crate with one dependency, both in the workspace.
    fn edge(from: &str, to: &str, kind: Option<&str>) -> Vec<String> {
        let metadata = serde_json::json!({ "packages": [
            { "name": from, "dependencies": [{ "name": to, "kind": kind }, { "name": "serde", "kind": null }] },
            { "name": to, "dependencies": [] },
        ]});
        wrong_edges(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn imports_go_down() {
        assert!(edge("kiln-nn", "kiln-weights", None).is_empty());
        assert!(edge("kiln-engine", "kiln-scheduler", None).is_empty());
        assert!(edge("kiln-cli", "kiln-engine", None).is_empty());
    }

    #[test]
    fn imports_do_not_go_up_or_sideways() {
        let up = edge("kiln-ops", "kiln-nn", None);
        assert_eq!(up, ["kiln-ops -> kiln-nn (normal): floor 2 must not import floor 4, which is above it"]);
        let sideways = edge("kiln-unet", "kiln-vae", Some("dev"));
        assert!(sideways[0].starts_with("kiln-unet -> kiln-vae (dev): both are on floor 6"), "{sideways:?}");
        assert_eq!(edge("kiln-weights", "kiln-engine", Some("build")).len(), 1);
        assert_eq!(edge("xtask", "kiln-cli", None).len(), 1);
    }

    #[test]
    fn the_testkit_is_for_tests() {
        for floor in ["kiln-scheduler", "kiln-ops", "kiln-cli"] {
            assert!(edge(floor, "kiln-testkit", Some("dev")).is_empty());
            assert_eq!(edge(floor, "kiln-testkit", None).len(), 1);
            assert_eq!(edge(floor, "kiln-testkit", Some("build")).len(), 1);
        }
        assert_eq!(edge("kiln-testkit", "kiln-ops", None).len(), 1);
    }

    #[test]
    fn front_ends_import_no_networks_or_samplers() {
        assert!(edge("kiln-cli", "kiln-batch", None).is_empty());
        assert!(edge("kiln-cli", "kiln-scheduler", None)[0].contains("a front end imports only"));
        assert!(edge("kiln-serve", "kiln-unet", Some("dev"))[0].contains("a front end imports only"));
    }

    #[test]
    fn every_crate_has_a_floor() {
        assert_eq!(edge("kiln-new", "kiln-ops", None), ["kiln-new has no floor; give it one in xtask/src/floors.rs"]);
    }
}
