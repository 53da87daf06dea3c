//! Errors of this crate.

use std::path::{Path, PathBuf};

/// Why files could not be found or downloaded. Every message says what was requested, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the name of a repository.
    #[error(
        "`{found}` {problem}; expected OWNER/NAME as on the Hub, optionally with a revision, OWNER/NAME@REVISION, or a \
         file, OWNER/NAME/FILE"
    )]
    Name {
        /// The text.
        found: String,
        /// The problem.
        problem: String,
    },
    /// An environment variable, or the file that it names, has an invalid value.
    #[error("{name} {problem}")]
    Setting {
        /// The variable.
        name: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// The cache does not have the files, and connections are not allowed or were not wanted.
    #[error(
        "{what}: {problem} (the cache is {}); kiln pull {what} downloads it, unless `offline` or HF_HUB_OFFLINE \
         forbids connections",
        cache.display()
    )]
    NotCached {
        /// The repository, with revision and file.
        what: String,
        /// The missing part.
        problem: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The repository is private or does not exist: the Hub gives the same answer to both.
    #[error("{what}: {}", hidden(page, *token))]
    Hidden {
        /// The repository.
        what: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The repository's files are available only to users who accepted its license.
    #[error("{what}: {}", gated(page, *token))]
    Gated {
        /// The repository.
        what: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// There is no such revision.
    #[error("{what}: there is no revision {revision}; {page}/commits/main lists the existing ones")]
    NoRevision {
        /// The repository.
        what: String,
        /// The revision.
        revision: String,
        /// The repository's page.
        page: String,
    },
    /// There is no such file.
    #[error("{what}: there is no file {file}; {}", others(nearest))]
    NoFile {
        /// The repository.
        what: String,
        /// The file's name.
        file: String,
        /// Similar names.
        nearest: Vec<String>,
    },
    /// It is not clear which files to download.
    #[error("{what} {problem}")]
    Choice {
        /// The repository.
        what: String,
        /// Why, and what to do.
        problem: String,
    },
    /// The server answers with an error.
    #[error("{address}: the server says {status}{}{advice}", quoted(message))]
    Status {
        /// The requested address.
        address: String,
        /// The HTTP status.
        status: u16,
        /// The server's message, if any.
        message: String,
        /// A remedy; empty or a clause of its own.
        advice: &'static str,
    },
    /// The server cannot be reached, or stopped answering, several times in a row.
    #[error("{address}: {problem}; {}", after(*kept))]
    Network {
        /// The requested address.
        address: String,
        /// The event.
        problem: String,
        /// Whether a part of the files is in the cache.
        kept: bool,
    },
    /// There is no connection to the network, or the name of the server is not known.
    #[error(
        "{address}: {problem}; check the connection, or give a model that is on this machine or in the cache ({})",
        cache.display()
    )]
    Offline {
        /// The server's address.
        address: String,
        /// The event.
        problem: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The server's answer is not one of a Hub.
    #[error("{address}: refused: {problem}")]
    Refused {
        /// The requested address.
        address: String,
        /// The problem of the answer.
        problem: String,
    },
    /// A file has the wrong checksum.
    #[error(
        "{file}: its checksum is {found}, expected {expected}: it was changed during the download and is not kept; try \
         again, perhaps over another network"
    )]
    Checksum {
        /// The file's name in the repository.
        file: String,
        /// The checksum according to the Hub.
        expected: String,
        /// The checksum of the received bytes.
        found: String,
    },
    /// A file of an official model differs from the published one.
    #[error(
        "{what}: {file} has the checksum {found}, but the published file has {expected}; to use it anyway, name the \
         commit: {what}@{commit}"
    )]
    NotOfficial {
        /// The repository.
        what: String,
        /// The file's name.
        file: String,
        /// The published checksum.
        expected: &'static str,
        /// The server's.
        found: String,
        /// The server's commit.
        commit: String,
    },
    /// The disk has too little free space.
    #[error(
        "{} has {} free, {} more are needed; make room, or set HF_HUB_CACHE to a folder on another disk",
        folder.display(), gib(*free), gib(*needed)
    )]
    Space {
        /// The cache's folder.
        folder: PathBuf,
        /// Bytes that are still to be downloaded.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system cannot start a thread for a request.
    #[error(
        "no thread can be started: {0}; raise the limit of processes (ulimit -u), or pids.max of the control group"
    )]
    Thread(std::io::Error),
    /// A file or folder of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The listener asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the request or a setting is wrong, rather than the network, a server or a disk.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::Setting { .. })
    }

    /// Whether the Hub could not be reached or could not answer, so that only the cache can be used.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Network { .. } | Self::Offline { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Io { path, source }
    }

    pub(crate) fn refused(address: &str, problem: impl Into<String>) -> Self {
        Self::Refused { address: address.into(), problem: problem.into() }
    }
}

/// The state of the file after a failed download.
fn after(kept: bool) -> &'static str {
    match kept {
        true => "the downloaded part is kept, and the same command continues it",
        false => "nothing was downloaded; the same command tries again",
    }
}

fn hidden(page: &str, token: bool) -> String {
    match token {
        true => format!(
            "is not on the Hub under this name, or your token (HF_TOKEN, or the file of `hf auth login`) has no access to it \
             or is no longer valid; check the spelling and {page}"
        ),
        false => format!(
            "is not on the Hub under this name, or it is private; check the spelling and {page}. If it is private or \
             gated, put a token of yours into HF_TOKEN (huggingface.co/settings/tokens)"
        ),
    }
}

fn gated(page: &str, token: bool) -> String {
    match token {
        true => format!(
            "is gated, and your token has no access; accept its license on {page} with the account of the token, and \
             check that the token may read gated repositories"
        ),
        false => format!(
            "is gated: accept its license on {page}, then put a token of your account into HF_TOKEN \
             (huggingface.co/settings/tokens)"
        ),
    }
}

fn others(nearest: &[String]) -> String {
    match nearest {
        [] => "it has no files".into(),
        names => format!("there are {}", names.join(", ")),
    }
}

fn quoted(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

fn gib(bytes: u64) -> String {
    match bytes {
        ..0x1_0000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
