//! What can go wrong with a pool.

/// Why a pool cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This build cannot use cards.
    #[error("this build of Kiln has no CUDA; use kiln-cuda")]
    NoCuda,
    /// A pool has no memory for a request. Smaller work, or the same after a trim, may find some.
    #[error("no room for {} of {pool} memory: {} are in use{}", size(*asked), size(*used), bound(*ceiling))]
    OutOfMemory {
        /// Whose memory: host, page-locked, or the card's.
        pool: &'static str,
        /// The request in bytes.
        asked: u64,
        /// What the pool has in use, in bytes; 0 where nobody counts.
        used: u64,
        /// The most that it may have, where there is such a bound.
        ceiling: Option<u64>,
    },
    /// A trace of memory is being recorded already.
    #[error("a trace of memory is being recorded already; a process has one at a time")]
    Recording,
    /// CUDA's driver refused a call.
    #[error("the memory pool of card {ordinal}: {call}: {problem}")]
    Driver {
        /// The card's number.
        ordinal: usize,
        /// What was asked of the driver.
        call: &'static str,
        /// What it said.
        problem: String,
    },
}

impl Error {
    /// Whether a smaller request might have been met.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn bound(ceiling: Option<u64>) -> String {
    match ceiling {
        Some(ceiling) => format!(", {} are the most; allow more, or take a smaller picture or batch", size(ceiling)),
        None => "; end other programs, or take a smaller picture or batch".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_what_was_asked_for_and_what_helps() {
        let error = |ceiling| Error::OutOfMemory { pool: "host", asked: 3 << 20, used: 62 << 20, ceiling };
        assert!(error(None).is_out_of_memory() && !Error::NoCuda.is_out_of_memory());
        let text = error(Some(64 << 20)).to_string();
        assert!(text.starts_with("no room for 3.0 MiB of host memory: 62.0 MiB are in use, 64.0 MiB are"), "{text}");
        assert!(error(None).to_string().ends_with("or take a smaller picture or batch"));
    }
}
