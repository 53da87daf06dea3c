//! Files of input images.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kiln_files::sha256;
use kiln_media::{DecodeOptions, DecodedImage, decode, read_all};

use crate::error::{Error, Result};

/// The path that stands for the standard input.
const STANDARD_INPUT: &str = "-";

/// A decoded file.
pub(super) struct ImageFile {
    pub(super) image: DecodedImage,
    /// The SHA-256 of its bytes in hexadecimal digits.
    pub(super) sha256: String,
}

impl ImageFile {
    /// Reads the image of the option `name`. `-` is the standard input, which is read once.
    ///
    /// # Errors
    /// [`Error::Files`] where there is no such file, [`Error::Image`] where it is no image that can be read.
    pub(super) fn read(name: &'static str, path: &Path) -> Result<Self> {
        let options = DecodeOptions::default();
        if path == Path::new(STANDARD_INPUT) {
            const NAME: &str = "the standard input";
            static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
            let bytes = match BYTES.get() {
                Some(bytes) => bytes,
                None => {
                    let read = read_all(std::io::stdin().lock(), NAME, &options)?;
                    BYTES.get_or_init(|| read)
                }
            };
            return Ok(Self { image: decode(bytes, NAME, &options)?, sha256: sha256(bytes) });
        }
        if !path.exists() {
            return Err(Error::not_found(path, format!("`{name}`, an image")));
        }
        let shown = path.display().to_string();
        let bytes = kiln_media::read_file(path, &options)?;
        Ok(Self { image: decode(&bytes, &shown, &options)?, sha256: sha256(&bytes) })
    }
}

/// The name of a file without its folder, which concerns nobody who gets the result.
pub(super) fn file_name(path: &Path) -> PathBuf {
    path.file_name().map_or_else(|| path.to_path_buf(), PathBuf::from)
}
