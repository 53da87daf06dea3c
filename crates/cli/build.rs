//! The facts about the build that `kiln --version` prints: the commit of the sources, and the features.
//!
//! On Windows also the manifest of `kiln.exe`: the program takes paths of more than 260 characters, and its texts are UTF-8, so that
//! it and the libraries that it loads agree about names with umlauts.

use std::path::Path;
use std::process::Command;

use embed_manifest::manifest::{ActiveCodePage, Setting};
use embed_manifest::{embed_manifest, new_manifest};

/// The prefix of cargo's variables for features.
const FEATURE: &str = "CARGO_FEATURE_";

fn main() {
    println!("cargo:rerun-if-env-changed=KILN_COMMIT");
    // The sources of the workspace, and nothing of git: a commit alone builds nothing again, and with the sources this crate is
    // built again anyway.
    println!("cargo:rerun-if-changed=build.rs");
    for source in std::fs::read_dir("..").into_iter().flatten().flatten() {
        let source = source.path().join("src");
        if source.is_dir() {
            println!("cargo:rerun-if-changed={}", source.display());
        }
    }
    let given = std::env::var("KILN_COMMIT").ok().filter(|commit| !commit.is_empty());
    println!("cargo:rustc-env=KILN_BUILD_COMMIT={}", given.or_else(commit).unwrap_or_default());
    println!("cargo:rustc-env=KILN_BUILD_FEATURES={}", features().join(" "));
    if std::env::var_os("CARGO_CFG_WINDOWS").is_some() {
        let manifest = new_manifest("Kiln").active_code_page(ActiveCodePage::Utf8).long_path_aware(Setting::Enabled);
        embed_manifest(manifest).expect("the manifest is written into cargo's folder");
    }
}

/// The commit of the sources, with `-dirty` if files differ from it. None in an archive, or without git.
fn commit() -> Option<String> {
    let root = Path::new("../..");
    // An archive may be unpacked in a repository of something else.
    if !root.join(".git").exists() {
        return None;
    }
    let arguments = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

/// The features that this crate is built with, sorted.
fn features() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| Some(name.to_str()?.strip_prefix(FEATURE)?.to_lowercase()));
    let mut names: Vec<String> = names.filter(|name| name != "default").map(|name| name.replace('_', "-")).collect();
    names.sort();
    names
}
