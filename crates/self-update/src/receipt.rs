//! The receipt of an install script.

use std::path::{Path, PathBuf};

use kiln_files::{MAX_CONFIG_BYTES, read_error, read_small_text, replace_file};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::origin::advice;

/// The file that an install script writes into the user's folder for data: `~/.local/share/kiln/receipt.json`, on Windows
/// `%LOCALAPPDATA%\kiln\receipt.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The version that was installed.
    pub version: String,
    /// The absolute path of the program.
    pub program: PathBuf,
    /// The address below which releases are.
    pub source: String,
    /// The name of the archive that the program came from: `kiln-VERSION-TARGET.ENDING`.
    pub archive: String,
    /// Fields of later versions of the script, which are kept.
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

/// The endings of archives.
const ENDINGS: [&str; 3] = [".tar.xz", ".tar.gz", ".zip"];

impl Receipt {
    /// The receipt for the program at `program`, and its path.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] if none names this program, [`Error::Receipt`] for a damaged one.
    pub fn of(program: &Path) -> Result<(Self, PathBuf)> {
        Self::among(&paths(), program)
    }

    fn among(paths: &[PathBuf], program: &Path) -> Result<(Self, PathBuf)> {
        let whole = program.canonicalize().map_err(read_error(program))?;
        for path in paths.iter().filter(|path| path.is_file()) {
            let receipt = Self::read(path)?;
            if receipt.program.canonicalize().is_ok_and(|named| named == whole) {
                return Ok((receipt, path.clone()));
            }
        }
        Err(Error::NotInstalled { advice: advice(&whole), program: program.to_path_buf() })
    }

    fn read(path: &Path) -> Result<Self> {
        let text = read_small_text(path, MAX_CONFIG_BYTES).map_err(read_error(path))?;
        serde_json::from_str(&text).map_err(|error| Error::Receipt { path: path.into(), problem: error.to_string() })
    }

    /// Writes the receipt.
    ///
    /// # Errors
    /// [`kiln_files::Error::Write`].
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        Ok(replace_file(path, format!("{:#}\n", serde_json::json!(self)).as_bytes())?)
    }

    /// The platform in the name of the archive: `x86_64-unknown-linux-gnu`.
    pub(crate) fn target(&self) -> Option<&str> {
        let stem = ENDINGS.iter().find_map(|ending| self.archive.strip_suffix(ending))?;
        stem.strip_prefix("kiln-")?
            .strip_prefix(self.version.as_str())?
            .strip_prefix('-')
            .filter(|target| !target.is_empty())
    }
}

/// Where receipts are. The script may know `XDG_DATA_HOME` or not.
fn paths() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folders = match cfg!(windows) {
        true => vec![variable("LOCALAPPDATA")],
        false => vec![variable("XDG_DATA_HOME"), std::env::home_dir().map(|home| home.join(".local/share"))],
    };
    folders.into_iter().flatten().map(|folder| folder.join("kiln").join("receipt.json")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receipt_of_this_program_counts() {
        let root = tempfile::tempdir().unwrap();
        let [program, other, path] = ["kiln", "other", "receipt.json"].map(|name| root.path().join(name));
        std::fs::write(&program, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let text = serde_json::json!({
            "version": "0.1.0", "program": program, "source": "https://example.org/releases",
            "archive": "kiln-0.1.0-x86_64-unknown-linux-gnu.tar.xz", "later": [1],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        let paths = [root.path().join("missing.json"), path.clone()];
        let (receipt, found) = Receipt::among(&paths, &program).unwrap();
        assert_eq!((receipt.target(), found), (Some("x86_64-unknown-linux-gnu"), path.clone()));
        receipt.write(&path).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(&path).unwrap()).unwrap(), text);
        let error = Receipt::among(&paths, &other).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("no install script put this program here"), "{error}");
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Receipt::among(&paths, &program), Err(Error::Receipt { .. })));
    }

    #[test]
    fn a_name_of_another_version_has_no_target() {
        let receipt = |archive: &str| Receipt {
            version: "0.1.0".into(),
            program: "kiln".into(),
            source: String::new(),
            archive: archive.into(),
            others: serde_json::Map::new(),
        };
        assert_eq!(receipt("kiln-0.1.0-aarch64-apple-darwin.zip").target(), Some("aarch64-apple-darwin"));
        for archive in ["kiln-0.2.0-a.zip", "kiln-0.1.0-.zip", "kiln-0.1.0.zip", "kiln-0.1.0-a", ""] {
            assert_eq!(receipt(archive).target(), None, "{archive}");
        }
    }
}
