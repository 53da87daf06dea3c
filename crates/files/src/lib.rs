//! Floor 0: what every crate needs around files: safe writing, checksums, byte sizes, cache folders.
#![forbid(unsafe_code)]
