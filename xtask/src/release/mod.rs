//! The files of a release that follow from the sources: licenses, the bill of materials, and what is left to do before a release.

mod licenses;
mod linked;
mod ready;
mod sbom;

use std::path::Path;

use crate::Result;
use crate::workspace::{read, root};
use linked::Linked;

pub use ready::ready;

/// Writes the licenses and the bill of materials of the program for `target` into `folder`.
///
/// # Errors
/// If a package has no license text, or cargo fails.
pub fn notices(target: &str, folder: &str, features: &str) -> Result {
    let linked = Linked::of(target, features)?;
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("THIRD-PARTY-LICENSES.txt"), licenses::text(&linked)?)?;
    std::fs::write(folder.join("kiln.cdx.json"), sbom::text(&linked, target)?)?;
    println!("{target}: licenses and bill of materials of {} packages", linked.packages.len());
    Ok(())
}

/// Prints a value that holds for the whole workspace: `version`, `repository` and others of `[workspace.package]`.
///
/// # Errors
/// If there is no such value.
pub fn about(key: &str) -> Result {
    println!("{}", workspace_value(key)?);
    Ok(())
}

/// A string in `[workspace.package]` of the workspace's `Cargo.toml`.
fn workspace_value(key: &str) -> Result<String> {
    let text = read(&root().join("Cargo.toml"))?;
    value_in(&text, key).ok_or_else(|| format!("Cargo.toml: [workspace.package] has no string {key:?}").into())
}

fn value_in(text: &str, key: &str) -> Option<String> {
    let lines = text.lines().skip_while(|line| *line != "[workspace.package]").skip(1);
    let mut lines = lines.take_while(|line| !line.starts_with('['));
    let value = lines.find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
    Some(value.trim().strip_prefix('"')?.split_once('"')?.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::value_in;

    #[test]
    fn values_are_those_of_the_workspace() {
        let text = "[a]\nversion = \"9\"\n[workspace.package]\nversions = \"8\"\nversion = \"1.2.3\" # b\npublish = false\n[c]\nlicense = \"X\"\n";
        assert_eq!(value_in(text, "version").as_deref(), Some("1.2.3"));
        assert_eq!((value_in(text, "publish"), value_in(text, "license")), (None, None));
    }
}
