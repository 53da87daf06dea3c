//! Nothing: see `tests/measured.rs`.
