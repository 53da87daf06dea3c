//! Names of repositories, revisions and files, and which names are refused.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The prefix of a name on the Hub where a path is allowed too.
const PREFIX: &str = "hf:";
/// The longest owner or name on the Hub, in bytes.
const MAX_PART: usize = 96;
/// The longest path of a file and the longest revision, in bytes.
const MAX_PATH: usize = 1024;
/// The default revision.
pub(crate) const MAIN: &str = "main";

/// A repository on the Hub, optionally at a revision, optionally one file of it: `OWNER/NAME[@REVISION][/FILE]`, also with
/// the prefix `hf:`.
///
/// Revisions are branches, tags and commits. A revision with slashes cannot be followed by a file, except `refs/pr/1` and the
/// like.
///
/// ```
/// let reference: kiln_hub::Reference = "hf:stabilityai/sdxl-vae@main/sdxl_vae.safetensors".parse()?;
/// assert_eq!(reference.repository(), "stabilityai/sdxl-vae");
/// assert_eq!(reference.file(), Some("sdxl_vae.safetensors"));
/// # Ok::<(), kiln_hub::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    owner: String,
    name: String,
    revision: Option<String>,
    file: Option<String>,
}

impl Reference {
    /// Whether a path is a name on the Hub.
    pub fn is_meant_by(path: &Path) -> bool {
        path.to_str().is_some_and(|text| text.starts_with(PREFIX))
    }

    /// `OWNER/NAME`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The name without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The revision; `main` if none was named.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// Whether a revision was named.
    pub fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The file, if one was named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The repository's folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, "/{file}"))
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem: &str| Error::Name { found: text.into(), problem: problem.into() };
        if text.contains("://") {
            return Err(wrong("is an address"));
        }
        let bare = text.strip_prefix(PREFIX).unwrap_or(text);
        let (owner, rest) = bare.split_once('/').ok_or_else(|| wrong("has no owner and name"))?;
        let end = rest.find(['/', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        for part in [owner, name] {
            part_problem(part).map_or(Ok(()), |problem| Err(wrong(&problem)))?;
        }
        let (revision, file) = match rest.split_at_checked(1) {
            Some(("@", rest)) => {
                let (revision, file) = split_revision(rest);
                (Some(revision.to_string()), file)
            }
            Some((_, file)) => (None, Some(file)),
            None => (None, None),
        };
        for path in [revision.as_deref(), file].into_iter().flatten() {
            path_problem(path).map_or(Ok(()), |problem| Err(wrong(&problem)))?;
        }
        let file = file.map(String::from);
        Ok(Self { owner: owner.into(), name: name.into(), revision, file })
    }
}

/// Splits the revision from the file. Revisions of pull requests have three segments, other revisions before a file have one. A
/// path is a file only if its last segment has a dot.
fn split_revision(text: &str) -> (&str, Option<&str>) {
    let parts = if text.starts_with("refs/") { 3 } else { 1 };
    let is_file = text.rsplit('/').next().is_some_and(|last| last.contains('.'));
    match text.match_indices('/').nth(parts - 1) {
        Some((at, _)) if is_file => (&text[..at], Some(&text[at + 1..])),
        _ => (text, None),
    }
}

/// The problem of an owner or a name, if any. They become the name of a folder, joined by `--`.
fn part_problem(part: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match part {
        "" => Some("has an empty owner or name".into()),
        part if part.len() > MAX_PART => Some(format!("has an owner or name of more than {MAX_PART} characters")),
        part if !part.chars().all(allowed) => {
            Some(format!("has a part `{part}`, which is not allowed in names on the Hub"))
        }
        part if part.contains("--")
            || part.contains("..")
            || part.starts_with(['-', '.'])
            || part.ends_with(['-', '.']) =>
        {
            Some(format!("has a part `{part}`, which is not allowed in names on the Hub"))
        }
        _ => None,
    }
}

/// The problem of the path of a file in a repository, or of a revision, if any. Both become paths in the cache and must not
/// lead out of it on any system.
pub(crate) fn path_problem(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some("has an empty revision or file".into());
    }
    if path.len() > MAX_PATH {
        return Some(format!("has a path of more than {MAX_PATH} characters"));
    }
    let bad = |part: &str| {
        part.is_empty() || part == "." || part == ".." || part.contains(|c: char| c.is_control() || "\\:".contains(c))
    };
    path.split('/').any(bad).then(|| format!("has the path {path:?}, which could lead out of its folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Reference {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn paths_of_windows_are_no_names() {
        for path in
            [r"C:\models\x.safetensors", "C:/models/x.safetensors", r"\\?\C:\x", r"\\server\share\x", "h:/x", r"hf\x"]
        {
            assert!(!Reference::is_meant_by(Path::new(path)), "{path}");
            assert!(path.parse::<Reference>().is_err(), "{path}");
        }
        assert!(Reference::is_meant_by(Path::new("hf:owner/name")));
    }

    #[test]
    fn names_have_revisions_and_files() {
        for (text, revision, file) in [
            ("owner/name", None, None),
            ("hf:owner/name", None, None),
            ("owner/name@fp16", Some("fp16"), None),
            ("owner/name@refs/pr/7", Some("refs/pr/7"), None),
            ("owner/name@feature/fast", Some("feature/fast"), None),
            ("hf:owner/name/model.safetensors", None, Some("model.safetensors")),
            ("hf:owner/name/vae/model.fp16.safetensors", None, Some("vae/model.fp16.safetensors")),
            ("hf:owner/name@v1.0/vae/model.safetensors", Some("v1.0"), Some("vae/model.safetensors")),
            ("hf:owner/name@refs/pr/7/vae/model.safetensors", Some("refs/pr/7"), Some("vae/model.safetensors")),
        ] {
            let reference = parse(text);
            assert_eq!(reference.repository(), "owner/name");
            assert_eq!((reference.revision.as_deref(), reference.file()), (revision, file), "{text}");
            assert_eq!(reference.to_string(), text.trim_start_matches("hf:"));
        }
        assert_eq!(parse("owner/name").revision(), "main");
        assert_eq!(parse("stable-diffusion-v1-5/stable-diffusion-v1-5").name(), "stable-diffusion-v1-5");
    }

    #[test]
    fn invalid_names_are_refused() {
        for text in [
            "",
            "name",
            "owner/",
            "/name",
            "owner/name/",
            "owner/name@",
            "owner//name",
            "../name",
            "owner/..",
            "a--b/name",
            "owner/na me",
            "owner/name/../secret.txt",
            "owner/name/a/./b.txt",
            "owner/name/a\\b.txt",
            "owner/name/c:b.txt",
            "owner/name@../../x",
            "owner/name@a\nb",
            "https://huggingface.co/owner/name",
        ] {
            let message = text.parse::<Reference>().unwrap_err().to_string();
            assert!(message.contains("expected OWNER/NAME"), "{text:?}: {message}");
        }
    }
}
