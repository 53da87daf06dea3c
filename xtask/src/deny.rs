//! Checks the licenses, duplicate versions and sources of all packages against the lists in `deny.toml`.
//!
//! cargo-deny reads the same file and also queries the advisory database. This check needs neither it nor a network.

use std::collections::BTreeMap;

use crate::Result;
use crate::packages::{Package, packages};
use crate::workspace::{read, root};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The lists of `deny.toml`.
#[derive(Debug, Default, PartialEq)]
struct Lists {
    licenses: Vec<String>,
    /// `NAME@VERSION` of allowed duplicate versions.
    second_versions: Vec<String>,
}

/// Fails for every package that the lists do not allow, and for entries that are no longer needed.
pub fn check() -> Result {
    let packages = packages()?;
    let lists = Lists::parse(&read(&root().join("deny.toml"))?)?;
    let wrong = wrong(&packages, &lists);
    if wrong.is_empty() {
        let (n, second) = (packages.len(), lists.second_versions.len());
        println!("deny: {n} packages, all from crates.io and with allowed licenses, {second} duplicate versions");
        return Ok(());
    }
    Err(format!("deny.toml does not allow this:\n  {}", wrong.join("\n  ")).into())
}

impl Lists {
    /// Reads `allow` of `[licenses]` and `skip` of `[bans]`, one entry a line.
    fn parse(text: &str) -> Result<Self> {
        let entries = |section: &str, list: &str, key: &str| -> Result<Vec<String>> {
            let begin = format!("{list} = [");
            let lines =
                text.lines().skip_while(|line| *line != section).skip(1).take_while(|line| !line.starts_with('['));
            let lines: Vec<&str> =
                lines.skip_while(|line| *line != begin).skip(1).take_while(|line| *line != "]").collect();
            let entry = |line: &&str| Some(line.trim().strip_prefix(key)?.split_once('"')?.0.to_string());
            let found: Option<Vec<String>> = lines.iter().map(entry).collect();
            match found {
                Some(found) if !found.is_empty() => Ok(found),
                _ => Err(format!("deny.toml: {section} has no `{begin}` with an entry a line, each beginning {key}..")
                    .into()),
            }
        };
        Ok(Self {
            licenses: entries("[licenses]", "allow", "\"")?,
            second_versions: entries("[bans]", "skip", "{ crate = \"")?,
        })
    }
}

fn wrong(packages: &[Package], lists: &Lists) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, license, source, .. } in packages {
        versions.entry(name).or_default().push(version);
        if source.as_deref().is_some_and(|source| source != CRATES_IO) {
            wrong.push(format!("{name} {version} comes from {}", source.as_deref().unwrap_or_default()));
        }
        match license.as_deref() {
            Some(license) if is_allowed(license, &lists.licenses) => {}
            license => wrong.push(format!("{name} {version} has the license {}", license.unwrap_or("of a file"))),
        }
    }
    let skipped = |name: &str, version: &str| lists.second_versions.contains(&format!("{name}@{version}"));
    for (name, versions) in &versions {
        let counted = versions.iter().filter(|version| !skipped(name, version)).count();
        if counted > 1 {
            wrong.push(format!("{name} is present in the versions {}", versions.join(", ")));
        }
    }
    for entry in &lists.second_versions {
        let found = entry.split_once('@').and_then(|(name, version)| Some((versions.get(name)?, version)));
        if !found.is_some_and(|(versions, version)| versions.len() > 1 && versions.contains(&version)) {
            wrong.push(format!("{entry} is no longer a duplicate version: remove its entry"));
        }
    }
    wrong
}

/// Whether licenses of the list satisfy an SPDX expression: `AND` binds tighter than `OR`, and exceptions only allow
/// more.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, allowed) && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = both(words, allowed);
    while let ["OR", rest @ ..] = words {
        *words = rest;
        met |= both(words, allowed);
    }
    met
}

fn both(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    match words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = either(words, allowed);
            match words {
                [")", rest @ ..] => {
                    *words = rest;
                    met
                }
                _ => false,
            }
        }
        [license, "WITH", _, rest @ ..] | [license, rest @ ..] => {
            *words = rest;
            allowed.iter().any(|known| known == license)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package { name: name.into(), version: version.into(), license: Some(license.into()), ..Package::default() }
    }

    #[test]
    fn expressions_are_met_by_allowed_licenses() {
        let allowed = ["MIT", "Apache-2.0"].map(String::from);
        for met in
            ["MIT", "GPL-3.0 OR MIT", "X/MIT", "(MIT OR X) AND Apache-2.0", "Apache-2.0 WITH LLVM-exception OR X"]
        {
            assert!(is_allowed(met, &allowed), "{met}");
        }
        for not in ["", "GPL-3.0", "MIT AND GPL-3.0", "X OR MIT AND Y", "(MIT OR X) AND Y", "MIT X", "MIT)", "(MIT"] {
            assert!(!is_allowed(not, &allowed), "{not}");
        }
    }

    #[test]
    fn packages_outside_the_lists_are_named() {
        let text = "[licenses]\nallow = [\n    \"MIT\", # short\n]\n[bans]\nskip = [\n    { crate = \"a@1.0.0\", reason = \"b\" },\n]\n";
        let lists = Lists::parse(text).unwrap();
        assert_eq!(lists, Lists { licenses: vec!["MIT".into()], second_versions: vec!["a@1.0.0".into()] });
        assert!(Lists::parse("[licenses]\nallow = [\"MIT\"]\n").is_err());
        let both = || vec![package("a", "1.0.0", "MIT"), package("a", "2.0.0", "MIT")];
        assert!(wrong(&both(), &lists).is_empty());
        assert!(wrong(&both()[1..], &lists)[0].contains("no longer a duplicate version"));
        let mut more = both();
        more.push(package("a", "3.0.0", "GPL-3.0"));
        more.push(Package { source: Some("git+https://example.org/b".into()), ..package("b", "1.0.0", "MIT") });
        let wrong = wrong(&more, &lists).join("\n");
        for part in [
            "a 3.0.0 has the license GPL-3.0",
            "a is present in the versions 1.0.0, 2.0.0, 3.0.0",
            "b 1.0.0 comes from git",
        ] {
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}
