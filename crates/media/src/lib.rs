//! Floor 1: images without a network: reading, resizing, and the text that programs write into their files.
#![forbid(unsafe_code)]
