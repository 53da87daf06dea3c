//! The newest release for a platform.

use std::path::{Path, PathBuf};

use kiln_files::{folder_of, remove_orphans, temporary_beside};
use semver::Version;

use crate::error::{Error, Result};
use crate::fetch::Client;
use crate::install::{check_start, replace, unpack};
use crate::receipt::Receipt;

const SUMS: &str = "SHA256SUMS";
/// The most bytes of the list of sums, and of an archive.
const MOST_OF_SUMS: u64 = 1 << 20;
const MOST_OF_ARCHIVE: u64 = 2 << 30;

/// The newest release for the platform of an installed program.
pub struct Release {
    /// Its version.
    pub version: Version,
    /// The version of the program that is installed.
    pub installed: Version,
    archive: String,
    sha256: String,
    client: Client,
    receipt: Receipt,
    receipt_path: PathBuf,
}

/// Asks for the newest release for the program at `program`, of version `installed`.
///
/// # Errors
/// [`Error::NotInstalled`] before any request; those of the request; [`Error::Release`] if there is no archive for this platform.
pub fn newest(program: &Path, installed: &str) -> Result<Release> {
    let (receipt, receipt_path) = Receipt::of(program)?;
    let damaged = |problem: String| Error::Receipt { path: receipt_path.clone(), problem };
    let installed = Version::parse(installed).map_err(|error| damaged(error.to_string()))?;
    let target = receipt.target().ok_or_else(|| damaged(format!("its archive is {:?}", receipt.archive)))?;
    let client = Client::new(&receipt.source).map_err(damaged)?;
    let (address, mut sums) = (client.address(SUMS), Vec::new());
    client.fetch(&address, MOST_OF_SUMS, &mut sums, &mut |_, _| {})?;
    let archives = archives(&String::from_utf8_lossy(&sums), target);
    let Some((version, archive, sha256)) = archives.into_iter().max_by(|a, b| a.0.cmp(&b.0)) else {
        return Err(Error::Release { address, problem: format!("names no zip archive for {target}") });
    };
    Ok(Release { version, installed, archive, sha256, client, receipt, receipt_path })
}

/// The versions, names and sums of the zip archives for `target` in a list of sums.
fn archives(sums: &str, target: &str) -> Vec<(Version, String, String)> {
    let ending = format!("-{target}.zip");
    let archive = |line: &str| {
        let (sum, name) = line.split_once(char::is_whitespace)?;
        let name = name.trim_start().trim_start_matches('*').trim_end();
        let is_sum = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        let version = Version::parse(name.strip_prefix("kiln-")?.strip_suffix(&ending)?).ok()?;
        is_sum.then(|| (version, name.to_string(), sum.to_lowercase()))
    };
    sums.lines().filter_map(archive).collect()
}

impl Release {
    /// Whether it is newer than the program.
    pub fn is_newer(&self) -> bool {
        self.version > self.installed
    }

    /// Downloads the archive, checks it, and replaces the program. `heard` gets the number of bytes that have come, and of all.
    ///
    /// # Errors
    /// Errors of the request and of the files. After any error the old program is there.
    pub fn install(mut self, heard: &mut dyn FnMut(u64, Option<u64>)) -> Result<Version> {
        let program = self.receipt.program.clone();
        let program = program.canonicalize().map_err(kiln_files::read_error(&program))?;
        remove_orphans(folder_of(&program)); // of an update that was killed
        let address = self.client.address(&self.archive);
        let refused = |problem: String| Error::Release { address: address.clone(), problem };
        let mut file = temporary_beside(&program)?;
        let found = self.client.fetch(&address, MOST_OF_ARCHIVE, &mut file, heard)?;
        if found != self.sha256 {
            return Err(refused(format!("its SHA-256 is {found}, {SUMS} says {}", self.sha256)));
        }
        let stem = self.archive.trim_end_matches(".zip");
        let name = format!("{stem}/kiln{}", std::env::consts::EXE_SUFFIX);
        let new = unpack(file.as_file(), &name, &program).map_err(refused)?;
        check_start(&new, &self.version).map_err(refused)?;
        replace(new, &program)?;
        (self.receipt.version, self.receipt.archive) = (self.version.to_string(), self.archive);
        self.receipt.write(&self.receipt_path)?;
        Ok(self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_name_archives_of_a_platform() {
        let sum = "a".repeat(64);
        let sums = format!(
            "{sum}  kiln-0.2.0-x86_64-unknown-linux-gnu.zip\n{sum} *kiln-0.10.0-x86_64-unknown-linux-gnu.zip\n\
             {sum}  kiln-0.3.0-x86_64-unknown-linux-gnu.tar.xz\nshort  kiln-9.0.0-x86_64-unknown-linux-gnu.zip\n\
             {sum}  kiln-9.0.0-aarch64-apple-darwin.zip\n{sum}  kiln-x-x86_64-unknown-linux-gnu.zip\n\n{sum}\n"
        );
        let found = archives(&sums, "x86_64-unknown-linux-gnu");
        let versions: Vec<String> = found.iter().map(|(version, ..)| version.to_string()).collect();
        assert_eq!(versions, ["0.2.0", "0.10.0"]);
        assert_eq!(found[1].1, "kiln-0.10.0-x86_64-unknown-linux-gnu.zip");
        assert!(found[1].0 > found[0].0);
    }
}
