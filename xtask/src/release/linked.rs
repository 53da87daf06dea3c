//! The packages that are linked into the program, and which of them needs which.

use std::collections::{BTreeMap, BTreeSet};

use crate::Result;
use crate::packages::{Package, packages};
use crate::workspace::cargo_output;

/// The package with the program.
pub const PROGRAM: &str = "kiln-cli";

/// A name and a version.
pub type Id = (String, String);

/// The packages that are linked into the program for one platform, without those of build scripts, macros and tests.
pub struct Linked {
    /// Sorted by name and version.
    pub packages: BTreeMap<Id, Package>,
    /// The direct dependencies of each package.
    pub edges: BTreeMap<Id, BTreeSet<Id>>,
}

impl Linked {
    /// The packages for a platform and features of the program, separated by commas.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn of(target: &str, features: &str) -> Result<Self> {
        let selection = ["tree", "--locked", "--package", PROGRAM, "--target", target, "--features", features];
        let shown = ["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", "|{p}"];
        let edges = edges(&cargo_output(&[&selection[..], &shown].concat())?)?;
        let all = packages()?.into_iter().map(|package| ((package.name.clone(), package.version.clone()), package));
        let packages: BTreeMap<Id, Package> = all.filter(|(id, _)| edges.contains_key(id)).collect();
        match edges.keys().find(|id| !packages.contains_key(id)) {
            Some((name, version)) => Err(format!("cargo metadata does not list {name} {version}").into()),
            None => Ok(Self { packages, edges }),
        }
    }
}

/// Reads the lines `DEPTH|NAME vVERSION ..` of `cargo tree`.
fn edges(tree: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>> {
    let mut edges: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines() {
        let parsed = || {
            let (depth, package) = line.split_once('|')?;
            let mut words = package.split(' ');
            let id = (words.next()?.to_string(), words.next()?.strip_prefix('v')?.to_string());
            Some((depth.parse::<usize>().ok()?, id))
        };
        let (depth, id) = parsed().ok_or_else(|| format!("cargo tree prints {line:?}"))?;
        path.truncate(depth);
        edges.entry(id.clone()).or_default();
        if let Some(parent) = path.last() {
            edges.entry(parent.clone()).or_default().insert(id.clone());
        }
        path.push(id);
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_make_edges() {
        let id = |name: &str| (name.to_string(), "1.0.0".to_string());
        let found = edges("0|a v1.0.0 (/path)\n1|b v1.0.0\n2|c v1.0.0\n1|c v1.0.0 (*)\n").unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[&id("a")], BTreeSet::from([id("b"), id("c")]));
        assert_eq!(found[&id("b")], BTreeSet::from([id("c")]));
        assert!(found[&id("c")].is_empty() && edges("warning").is_err());
    }
}
