//! What is left to do before a release.

use std::process::Command;

use crate::Result;
use crate::release::{value_in, workspace_value};
use crate::workspace::{read, root};

/// The top-level domain that no one can have (RFC 2606): an address in it is a placeholder.
const PLACEHOLDER: &str = ".invalid";

/// Lists what is left to do, and fails unless that is nothing.
///
/// # Errors
/// The list.
pub fn ready() -> Result {
    let version = workspace_value("version")?;
    let mut left = left(&read(&root().join("Cargo.toml"))?, &read(&root().join("CHANGELOG.md"))?);
    let copies = git(&["grep", "--untracked", "-lF", &placeholder_host()?, "--", ":!Cargo.toml"]).unwrap_or_default();
    left.extend(copies.lines().map(|path| format!("{path} repeats the placeholder of the repository's address")));
    if !git(&["status", "--porcelain"])?.trim().is_empty() {
        left.push("the checkout has changes that are not committed".into());
    }
    let tag = format!("v{version}");
    let tagged = git(&["tag", "--list", &tag])?;
    let here = git(&["tag", "--points-at", "HEAD"])?;
    if tagged.trim() == tag && !here.lines().any(|line| line == tag) {
        left.push(format!("the tag {tag} is at another commit: set a new version in Cargo.toml"));
    }
    if left.is_empty() {
        println!("ready for {tag}: see docs/releasing.md");
        return Ok(());
    }
    Err(format!("before the release of {version}:\n  {}", left.join("\n  ")).into())
}

/// The host of the placeholder, if the address is one. Otherwise a text that occurs nowhere else.
fn placeholder_host() -> Result<String> {
    let address = workspace_value("repository")?;
    Ok(host(&address)
        .filter(|host| host.ends_with(PLACEHOLDER))
        .map_or(format!("repository{PLACEHOLDER}"), String::from))
}

/// Lists the steps before a release that are missing in these two files.
fn left(manifest: &str, changelog: &str) -> Vec<String> {
    let mut left = Vec::new();
    let address = value_in(manifest, "repository").unwrap_or_default();
    match host(&address) {
        None => left.push("Cargo.toml: `repository` is no https address".into()),
        Some(host) if host.ends_with(PLACEHOLDER) => {
            left.push(format!("Cargo.toml: `repository` is the placeholder {address}"));
        }
        Some(_) => {}
    }
    let version = value_in(manifest, "version").unwrap_or_default();
    if version.split('.').count() != 3 {
        left.push(format!("Cargo.toml: the version {version:?} has not three parts"));
    }
    let headings: Vec<&str> = changelog.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let is_released = |heading: &&str| heading.split(' ').next() == Some(version.as_str());
    if !headings.iter().any(is_released) {
        left.push(format!("CHANGELOG.md: no heading `## {version} - DATE`"));
    }
    let unreleased = changelog.lines().skip_while(|line| *line != "## Unreleased").skip(1);
    if unreleased.take_while(|line| !line.starts_with("## ")).any(|line| line.starts_with("- ")) {
        left.push("CHANGELOG.md: entries under `## Unreleased`".into());
    }
    left
}

fn host(address: &str) -> Option<&str> {
    address.strip_prefix("https://")?.split('/').next().filter(|host| host.contains('.'))
}

fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(root()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::left;

    #[test]
    fn a_release_needs_an_address_and_a_changelog() {
        let manifest =
            |address: &str| format!("[workspace.package]\nversion = \"1.2.3\"\nrepository = \"{address}\"\n");
        let open = left(&manifest("https://example.invalid/kiln"), "## Unreleased\n\n- A\n\n## 1.2.2 - 2026-01-01\n");
        assert_eq!(open.len(), 3, "{open:?}");
        assert!(open[0].contains("placeholder") && open[1].contains("## 1.2.3") && open[2].contains("Unreleased"));
        let closed = left(&manifest("https://example.org/kiln"), "## Unreleased\n\n## 1.2.3 - 2026-01-02\n\n- A\n");
        assert!(closed.is_empty(), "{closed:?}");
        assert!(left(&manifest("kiln"), "## 1.2.3\n")[0].contains("no https address"));
    }
}
