//! The names of embeddings that prompts may contain.

use std::path::Path;

use kiln_request::{file_stem, weight_files};

/// The extensions of embedding files.
pub const EMBEDDING_ENDINGS: [&str; 3] = ["safetensors", "pt", "bin"];

/// The possible tokens of a folder of embeddings: the names of its files, without their extensions. No file is opened.
pub fn embedding_names(folder: Option<&Path>) -> Vec<String> {
    let files = folder.and_then(|folder| weight_files(folder, &EMBEDDING_ENDINGS).ok()).unwrap_or_default();
    files.iter().map(|path| file_stem(path)).collect()
}
