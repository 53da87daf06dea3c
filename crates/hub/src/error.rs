//! What can go wrong between a name and files in the cache.

use std::path::{Path, PathBuf};

/// Why there are no files. Every message says what was asked for, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no repository.
    #[error(
        "`{found}` {problem}; expected OWNER/NAME as the Hub has it, perhaps with a revision, OWNER/NAME@REVISION, or a \
         file, OWNER/NAME/FILE"
    )]
    Name {
        /// The text.
        found: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An environment variable, or a file that it names, cannot be used.
    #[error("{name} {problem}")]
    Setting {
        /// The variable.
        name: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The Hub may not be asked, and the cache does not have it.
    #[error(
        "{what}: {problem} (the cache is {}); kiln pull {what} fetches it, where neither `offline` nor HF_HUB_OFFLINE \
         forbids that",
        cache.display()
    )]
    NotCached {
        /// The repository, with revision and file.
        what: String,
        /// What is missing.
        problem: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The repository is hidden or not there: the Hub does not tell these apart.
    #[error("{what}: {}", hidden(page, *token))]
    Hidden {
        /// The repository.
        what: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The repository's files are for those who accepted its licence.
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
    #[error("{what}: there is no revision {revision}; {page}/commits/main lists those that there are")]
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
        /// Names that are near it.
        nearest: Vec<String>,
    },
    /// Which files to fetch is not clear.
    #[error("{what} {problem}")]
    Choice {
        /// The repository.
        what: String,
        /// Why, and what to do.
        problem: String,
    },
    /// The server refuses.
    #[error("{address}: the server says {status}{}{advice}", quoted(message))]
    Status {
        /// What was asked for.
        address: String,
        /// The HTTP status.
        status: u16,
        /// The server's own words, if it has any.
        message: String,
        /// What to do; empty or a clause of its own.
        advice: &'static str,
    },
    /// The server cannot be reached, or stopped answering, many times in a row.
    #[error("{address}: {problem}; what was fetched is kept, the same command goes on from there")]
    Network {
        /// What was asked for.
        address: String,
        /// What happened.
        problem: String,
    },
    /// The server's answer is not one that a Hub gives.
    #[error("{address}: refused: {problem}")]
    Refused {
        /// What was asked for.
        address: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// A file is not what its checksum says.
    #[error(
        "{file}: its checksum is {found}, expected {expected}: it was changed on its way, and is not kept; try again, \
         perhaps over another network"
    )]
    Checksum {
        /// The file's name in the repository.
        file: String,
        /// What the Hub says that it is.
        expected: String,
        /// What came.
        found: String,
    },
    /// A file of an official model is another one than was published.
    #[error(
        "{what}: {file} has the checksum {found}, but the one that was published has {expected}; to take it all the \
         same, name the commit: {what}@{commit}"
    )]
    NotOfficial {
        /// The repository.
        what: String,
        /// The file's name.
        file: String,
        /// The known checksum.
        expected: &'static str,
        /// The server's.
        found: String,
        /// The commit that the server has.
        commit: String,
    },
    /// The disk is too small.
    #[error(
        "{} has {} free, {} more are needed; make room, or set HF_HUB_CACHE to a folder on another disk",
        folder.display(), gib(*free), gib(*needed)
    )]
    Space {
        /// The cache's folder.
        folder: PathBuf,
        /// Bytes that are missing there.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system starts no thread for a request.
    #[error(
        "no thread can be started: {0}; raise the limit of processes (ulimit -u), or pids.max of the control group"
    )]
    Thread(std::io::Error),
    /// A file or folder of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether what was asked for is at fault, rather than the network, a server or a disk.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::Setting { .. })
    }

    /// Whether the Hub could not be asked, or had no answer, so that what the cache has is the best that there is.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Network { .. } => true,
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

fn hidden(page: &str, token: bool) -> String {
    match token {
        true => format!(
            "is not on the Hub under this name, or your token (HF_TOKEN, or the file of `hf auth login`) may not see it or \
             is no longer valid; check the spelling and {page}"
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
            "is gated, and your token has no access; accept its licence on {page} with the account of the token, and \
             see that the token may read gated repositories"
        ),
        false => format!(
            "is gated: accept its licence on {page}, then put a token of your account into HF_TOKEN \
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
