//! Floor 4: super-resolution networks.
#![forbid(unsafe_code)]
