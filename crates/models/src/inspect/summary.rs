//! The facts of a model folder that its first lines show: files, defaults and license.

use std::io::Read;
use std::path::Path;

use kiln_weights::open_regular;

use crate::error::shortened;

/// The most bytes of a README that are read.
const README: u64 = 64 << 10;
/// The deepest folder whose files are counted.
const DEPTH: usize = 3;
/// The most characters of a license's name.
const LICENSE: usize = 80;

/// The number of files below a folder, and their bytes. Links to folders are not followed.
pub(crate) fn count_files(folder: &Path) -> (usize, u64) {
    count(folder, DEPTH)
}

fn count(folder: &Path, depth: usize) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && depth > 0 {
            let (inner, more) = count(&path, depth - 1);
            (files, bytes) = (files + inner, bytes + more);
        } else if let Some(found) = path.metadata().ok().filter(|found| found.is_file()) {
            (files, bytes) = (files + 1, bytes + found.len());
        }
    }
    (files, bytes)
}

/// The license that the head of a folder's `README.md` names, as models of the Hugging Face Hub do, or the name of a file
/// with its text.
pub(super) fn license(folder: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = open_regular(&folder.join("README.md")) {
        let _ = file.take(README).read_to_end(&mut bytes); // a part is enough
    }
    let file = || ["LICENSE", "LICENSE.md", "LICENSE.txt"].into_iter().find(|name| folder.join(name).is_file());
    license_of(&String::from_utf8_lossy(&bytes)).or_else(|| file().map(|name| format!("see {name}")))
}

/// The value of `license_name` or `license` between the first two lines `---`.
fn license_of(readme: &str) -> Option<String> {
    let mut lines = readme.lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let head: Vec<&str> = lines.take_while(|line| line.trim_end() != "---").collect();
    let value = |key: &str| {
        let found = head.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let text = found.trim().trim_matches(['"', '\'']);
        (!text.is_empty()).then(|| shortened(text, LICENSE))
    };
    value("license_name").or_else(|| value("license"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_card_names_its_license() {
        assert_eq!(license_of("---\ntags:\n- a\nlicense: openrail++\n---\n# A"), Some("openrail++".into()));
        let named = "---\nlicense: other\nlicense_name: \"my-license\"\nlicense_link: x\n---\n";
        assert_eq!(license_of(named), Some("my-license".into()));
        for readme in ["", "# A\nlicense: mit\n", "---\nlicense:\n---\n", "---\nx: y\n---\nlicense: mit\n"] {
            assert_eq!(license_of(readme), None, "{readme:?}");
        }
    }

    #[test]
    fn files_of_all_folders_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for (name, text) in [("x", "12"), ("a/y", "345"), ("a/b/z", "6")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(count_files(folder.path()), (3, 6));
        assert_eq!(count_files(&folder.path().join("nowhere")), (0, 0));
    }
}
