//! Wildcard lists in a folder: `__name__` in a prompt is replaced by a line of `name.txt`.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use kiln_files::check_folder;
use kiln_prompt::take_tags;

use crate::error::{Error, Result};

/// The lists of some prompts, read once, so that later changes of the files do not affect a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wildcards {
    lists: BTreeMap<String, Vec<String>>,
}

impl Wildcards {
    /// Reads the lists in `folder` that `prompts` name, and the lists that their lines name. Empty lines and lines that
    /// start with `#` are skipped. A name without a file stays text.
    ///
    /// # Errors
    /// [`Error::Files`] if the folder is missing or a list cannot be read.
    pub fn read(folder: &Path, prompts: &[&str]) -> Result<Self> {
        check_folder(folder, "`wildcards_dir`, a folder with lists of texts (name.txt, a text a line)")?;
        let mut lists = BTreeMap::new();
        let mut texts: Vec<String> = prompts.iter().map(|prompt| prompt.to_string()).collect();
        while let Some(text) = texts.pop() {
            // Between each pair of adjacent marks: a name may start where the previous one ends.
            for name in text.split("__").skip(1) {
                if lists.contains_key(name) || !is_name(name) {
                    continue;
                }
                let path = folder.join(format!("{name}.txt"));
                if !path.is_file() {
                    continue;
                }
                let list = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
                let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
                let lines: Vec<String> = lines.map(String::from).collect();
                texts.extend_from_slice(&lines);
                lists.insert(name.to_string(), lines);
            }
        }
        Ok(Self { lists })
    }

    /// The lines of a list.
    pub fn get(&self, name: &str) -> Option<&[String]> {
        self.lists.get(name).map(Vec::as_slice)
    }

    /// A sentence for each list with a tag, which is not read: the first tag of the list.
    pub(crate) fn left_out_tags(&self) -> impl Iterator<Item = String> {
        self.lists.iter().filter_map(|(name, lines)| {
            let tag = lines.iter().find_map(|line| take_tags(line).1.into_iter().next())?;
            Some(format!("{tag} of the list {name} is left out: tags are read in the prompt itself"))
        })
    }
}

/// The names between pairs of marks, `__name__`, that a list may have.
pub(crate) fn names_of(text: &str) -> impl Iterator<Item = &str> {
    let marks = text.matches("__").count();
    let inner = text.split("__").enumerate().filter(move |(place, _)| place % 2 == 1 && *place < marks);
    inner.map(|(_, name)| name).filter(|name| is_name(name))
}

/// Whether a file below a folder may have this name.
fn is_name(name: &str) -> bool {
    let known = |c: char| c.is_alphanumeric() || "_-./ ".contains(c);
    let below = Path::new(name).components().all(|component| matches!(component, Component::Normal(_)));
    !name.trim().is_empty() && name.len() < 200 && name.chars().all(known) && below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_lists_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(folder.path().join("animal.txt"), "# all\ncat\n\n __deep/bird__ \n").unwrap();
        std::fs::write(folder.path().join("deep/bird.txt"), "owl").unwrap();
        std::fs::write(folder.path().join("other.txt"), "x").unwrap();
        let wildcards = Wildcards::read(folder.path(), &["a __animal__ __missing__ __../animal__"]).unwrap();
        assert_eq!(wildcards.get("animal").unwrap(), ["cat", "__deep/bird__"]);
        assert_eq!(wildcards.get("deep/bird").unwrap(), ["owl"]);
        assert_eq!(wildcards.lists.len(), 2);
        let error = Wildcards::read(&folder.path().join("nowhere"), &[]).unwrap_err();
        assert!(error.to_string().contains("`wildcards_dir`"), "{error}");
    }
}
