//! The license texts of everything in the program, in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::packages::Package;
use crate::release::linked::Linked;
use crate::workspace::{read, root};

/// How names of files with licenses and notices begin.
const NAMES: [&str; 7] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE", "LICENSES"];
/// A folder in the program beyond its crates: the small model.
const MODEL: &str = "models/emoji";

/// All texts, each once, after the names of the packages that it is for.
///
/// # Errors
/// If a package has neither a file nor a license whose text is in this repository.
pub fn text(linked: &Linked) -> Result<String> {
    let mut texts = Texts::default();
    let mut list = String::new();
    for package in linked.packages.values() {
        let name = format!("{} {}", package.name, package.version);
        let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
        if package.source.is_none() {
            // Kiln's own license is in a file of its own. Its crates have data of others.
            for path in below(folder)? {
                texts.add(&format!("data in {name}"), &read_lossy(&path)?);
            }
            continue;
        }
        writeln!(list, "  {name}: {}", package.license.as_deref().unwrap_or("see its file"))?;
        let files = files(package, folder)?;
        for path in &files {
            texts.add(&name, &read_lossy(path)?);
        }
        if !files.iter().any(|path| !begins(path, "NOTICE")) {
            texts.add(&name, &standard(package)?);
        }
    }
    texts.add("the small model", &read(&root().join(MODEL).join("LICENSE"))?);
    texts.add("the standard library of Rust", &read(&root().join("LICENSE-APACHE"))?);
    Ok(format!(
        "kiln contains these packages of others, the standard library of Rust, and data. Their licenses are below.\n\n{list}{}",
        texts.print()
    ))
}

/// Texts with the names that they are for.
#[derive(Default)]
struct Texts(BTreeMap<String, (String, BTreeSet<String>)>);

impl Texts {
    /// Texts that differ in white space alone are one.
    fn add(&mut self, name: &str, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let entry = self.0.entry(words.join(" ")).or_insert_with(|| (lines.join("\n"), BTreeSet::new()));
        entry.1.insert(name.into());
    }

    fn print(&self) -> String {
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        let line = "=".repeat(80);
        let one = |(text, names): &&(String, BTreeSet<String>)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("\n{line}\n{}\n{line}\n\n{}\n", names.join(", "), text.trim_matches('\n'))
        };
        all.iter().map(one).collect()
    }
}

/// The files of a package with licenses and notices, sorted.
fn files(package: &Package, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: BTreeSet<PathBuf> = package.license_file.iter().map(|file| folder.join(file)).collect();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !NAMES.iter().any(|name| begins(&path, name)) {
            continue;
        }
        match path.is_dir() {
            true => files.extend(below(&path)?),
            false if !is_code(&path) => _ = files.insert(path),
            false => {}
        }
    }
    Ok(files.into_iter().collect())
}

/// The files with licenses in a folder and its folders, sorted. In a folder `LICENSES` every file is one.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let all = begins(folder, "LICENSES");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut below(&path)?);
        } else if !is_code(&path) && (all || NAMES.iter().any(|name| begins(&path, name))) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn begins(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|file| file.to_string_lossy().to_uppercase().starts_with(name))
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "rs" || end == "py")
}

fn read_lossy(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text for a package without a file: Apache's license, else that of MIT without a name.
fn standard(package: &Package) -> Result<String> {
    let license = package.license.as_deref().unwrap_or_default();
    let offers = |id: &str| license.replace('/', " OR ").split(" OR ").any(|part| part.trim() == id);
    if offers("Apache-2.0") {
        return read(&root().join("LICENSE-APACHE"));
    }
    if offers("MIT") {
        let text = read(&root().join("LICENSE-MIT"))?;
        return Ok(text.lines().filter(|line| !line.starts_with("Copyright")).collect::<Vec<_>>().join("\n"));
    }
    Err(format!("{} {} has no license file, and its license is {license:?}", package.name, package.version).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_printed_once() {
        let mut texts = Texts::default();
        texts.add("b 1", "Some  text\r\nof a license");
        texts.add("a 1", "Some text of\na license\n");
        texts.add("c 1", "Another");
        let printed = texts.print();
        assert_eq!(printed.matches("license").count(), 1, "{printed}");
        assert!(printed.contains("\na 1, b 1\n") && printed.find("a 1").unwrap() < printed.find("c 1").unwrap());
    }

    #[test]
    fn packages_without_a_file_have_a_standard_text() {
        let package = |license: &str| Package { license: Some(license.into()), ..Package::default() };
        assert!(standard(&package("MIT/Apache-2.0")).unwrap().contains("Apache License"));
        let mit = standard(&package("MIT")).unwrap();
        assert!(mit.contains("Permission is hereby granted") && !mit.contains("\nCopyright"), "{mit}");
        assert!(standard(&package("ISC")).is_err());
    }

    #[test]
    fn files_are_found_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        std::fs::create_dir(folder.join("LICENSES")).unwrap();
        for name in ["LICENSE-MIT", "license.rs", "COPYING", "src.txt", "LICENSES/ISC.txt", "NOTICE.md"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let found = files(&Package::default(), folder).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(folder).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["COPYING", "LICENSE-MIT", "LICENSES/ISC.txt", "NOTICE.md"]);
    }
}
