//! Errors of pools.

/// Why a pool operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This build has no CUDA.
    #[error("this build of Kiln has no CUDA (the feature `cuda`)")]
    NoCuda,
    /// A pool has no memory for a request. A smaller request may succeed, or the same one after a trim.
    #[error("out of {pool} memory: cannot allocate {}, {} in use{}", size(*requested), size(*used), bound(*ceiling))]
    OutOfMemory {
        /// The kind of memory: host, pinned, or GPU.
        pool: &'static str,
        /// The request in bytes.
        requested: u64,
        /// Bytes in use, or 0 where they are not counted.
        used: u64,
        /// The limit of the pool in bytes, if it has one.
        ceiling: Option<u64>,
    },
    /// A memory trace is being recorded already.
    #[error("a memory trace is being recorded already; a process can record one at a time")]
    Recording,
    /// A call of CUDA's driver failed.
    #[error("memory pool of GPU {ordinal}: {call}: {problem}")]
    Driver {
        /// The number of the GPU.
        ordinal: usize,
        /// The operation that failed.
        call: &'static str,
        /// The error of the driver.
        problem: String,
    },
}

impl Error {
    /// Whether a smaller request might succeed.
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
        Some(ceiling) => format!(", the limit is {}; raise the limit, or use a smaller image or batch", size(ceiling)),
        None => "; close other programs, or use a smaller image or batch".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_request_the_limit_and_a_remedy() {
        let error = |ceiling| Error::OutOfMemory { pool: "host", requested: 3 << 20, used: 62 << 20, ceiling };
        assert!(error(None).is_out_of_memory() && !Error::NoCuda.is_out_of_memory());
        let text = error(Some(64 << 20)).to_string();
        assert!(
            text.starts_with("out of host memory: cannot allocate 3.0 MiB, 62.0 MiB in use, the limit is 64.0 MiB"),
            "{text}"
        );
        assert!(error(None).to_string().ends_with("or use a smaller image or batch"));
    }
}
