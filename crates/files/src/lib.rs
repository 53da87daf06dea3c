//! File utilities for every crate: safe writing, checksums, byte sizes, cache folders, compressed tables.
//!
//! The crate contains no file format, no model and no command-line flag. Errors name the file or the field.
//!
//! ```
//! use kiln_files::{ByteSize, FileRules, PlannedFile, sha256};
//!
//! assert_eq!(ByteSize(94 << 20).to_string(), "94.0 MiB");
//! assert!(sha256(b"abc").starts_with("ba7816bf"));
//!
//! let folder = std::env::temp_dir();
//! let rules = FileRules { field: "output", what: "the report", extensions: &["json"], overwrite: true };
//! let file = PlannedFile::plan(&folder.join("kiln-files-example.json"), rules)?; // refused before anything is made
//! file.write(|to| to.write_all(b"{}"))?;
//! # std::fs::remove_file(file.path()).unwrap();
//! # Ok::<(), kiln_files::Error>(())
//! ```
#![forbid(unsafe_code)]

mod byte_size;
mod cache_folder;
mod error;
mod file_name;
mod planned;
mod sha256;
mod small_file;
mod temporary;
mod unpack;

pub use byte_size::ByteSize;
pub use cache_folder::cache_folder;
pub use error::{Error, Result, read_error, write_error};
pub use file_name::{name_problem, windows_name_problem};
pub use planned::{FileRules, PlannedFile, check_folder, check_writable};
pub use sha256::{Sha256, hex, sha256};
pub use small_file::{MAX_CONFIG_BYTES, open_regular, read_small, read_small_text};
pub use temporary::{
    folder_of, persist, persist_new, remove_orphans, replace_file, temporary_beside, temporary_folder_beside,
};
pub use unpack::unpack;
