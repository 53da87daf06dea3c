//! Files of input images.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kiln_files::{hex, sha256};
use kiln_media::{DecodeOptions, DecodedImage, ImageHeader, decode, header, read_all, read_file};
use md5::{Digest, Md5};

use crate::error::{Error, Result};
use crate::settings::{InputFile, NamedFile};

/// The file or stream of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// A file of any supported format.
    File(PathBuf),
    /// The standard input.
    StandardInput,
}

impl From<PathBuf> for ImageSource {
    /// `-` is the standard input, everything else a file.
    fn from(path: PathBuf) -> Self {
        if path == Path::new("-") { Self::StandardInput } else { Self::File(path) }
    }
}

impl ImageSource {
    /// The name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::StandardInput => "the standard input".into(),
        }
    }

    /// The part of the name that a result's name begins with.
    pub fn stem(&self) -> String {
        match self {
            Self::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::StandardInput => "stdin".into(),
        }
    }

    /// All bytes.
    ///
    /// # Errors
    /// [`Error::Media`] if they cannot be read, or are more than [`DecodeOptions::max_file`].
    pub fn read(&self) -> Result<Vec<u8>> {
        let options = DecodeOptions::default();
        Ok(match self {
            Self::File(path) => read_file(path, &options)?,
            Self::StandardInput => read_all(std::io::stdin().lock(), &self.name(), &options)?,
        })
    }
}

/// A decoded file.
pub(super) struct ImageFile {
    pub(super) image: DecodedImage,
    /// The SHA-256 of its bytes in hexadecimal digits.
    pub(super) sha256: String,
}

/// The bytes of an image file, before they are decoded.
pub(super) struct ImageBytes {
    bytes: Cow<'static, [u8]>,
    name: String,
}

impl ImageBytes {
    /// Reads the file of the option `name`. `-` is the standard input, which is read once.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Media`] if it cannot be read.
    pub(super) fn read(name: &'static str, path: &Path) -> Result<Self> {
        if path != Path::new("-") && !path.exists() {
            return Err(Error::not_found(path, format!("`{name}`, an image")));
        }
        static STANDARD_INPUT: OnceLock<Vec<u8>> = OnceLock::new();
        let source = ImageSource::from(path.to_path_buf());
        let bytes = match (&source, STANDARD_INPUT.get()) {
            (ImageSource::StandardInput, Some(bytes)) => Cow::Borrowed(&bytes[..]),
            (ImageSource::StandardInput, None) => {
                let bytes = source.read()?;
                Cow::Borrowed(&STANDARD_INPUT.get_or_init(|| bytes)[..])
            }
            (ImageSource::File(_), _) => Cow::Owned(source.read()?),
        };
        Ok(Self { bytes, name: source.name() })
    }

    /// The header. No pixel is decoded.
    ///
    /// # Errors
    /// [`Error::Media`] if it is not an image that can be read.
    pub(super) fn header(&self) -> Result<ImageHeader> {
        Ok(header(&self.bytes, &self.name, &DecodeOptions::default())?)
    }

    /// The image.
    ///
    /// # Errors
    /// See [`Self::header`].
    pub(super) fn decode(&self) -> Result<ImageFile> {
        let image = decode(&self.bytes, &self.name, &DecodeOptions::default())?;
        Ok(ImageFile { image, sha256: sha256(&self.bytes) })
    }
}

impl ImageFile {
    /// Reads the image of the option `name`. `-` is the standard input, which is read once.
    ///
    /// # Errors
    /// See [`ImageBytes::read`] and [`ImageBytes::decode`].
    pub(super) fn read(name: &'static str, path: &Path) -> Result<Self> {
        ImageBytes::read(name, path)?.decode()
    }
}

/// Reads an image of an image prompt, and gives its file as settings have it under the name `option`.
///
/// # Errors
/// Errors of the file.
pub(crate) fn read_prompt_image(path: &Path, option: String) -> Result<(DecodedImage, InputFile)> {
    named_image("ip_adapters", path, option)
}

/// Reads a reference image, as [`read_prompt_image`].
///
/// # Errors
/// Errors of the file.
pub(crate) fn read_reference(path: &Path, option: String) -> Result<(DecodedImage, InputFile)> {
    named_image("references", path, option)
}

/// Reads the mask of a region of the prompt, as [`read_prompt_image`].
///
/// # Errors
/// Errors of the file.
pub(crate) fn read_region_mask(path: &Path, option: String) -> Result<(DecodedImage, InputFile)> {
    named_image("regions", path, option)
}

fn named_image(name: &'static str, path: &Path, option: String) -> Result<(DecodedImage, InputFile)> {
    let file = ImageFile::read(name, path)?;
    let named = NamedFile { name: file_name(path).to_string_lossy().into_owned(), sha256: Some(file.sha256) };
    Ok((file.image, InputFile { option, file: named, pixels_md5: None }))
}

/// The MD5 of the pixels in hexadecimal digits, rows of red, green, blue and, where the file has it, alpha: AUTOMATIC1111's
/// "Init image hash" (`hashlib.md5(img.tobytes())` in `modules/processing.py`).
pub(super) fn pixels_md5(image: &DecodedImage) -> String {
    let mut md5 = Md5::new();
    match image.alpha() {
        None => md5.update(image.rgb().data()),
        Some(alpha) => {
            for (rgb, alpha) in image.rgb().pixels().zip(alpha.pixels()) {
                md5.update(rgb);
                md5.update(alpha);
            }
        }
    }
    hex(&md5.finalize())
}

/// The name of a file without its folder, which concerns nobody who gets the result.
pub(super) fn file_name(path: &Path) -> PathBuf {
    path.file_name().map_or_else(|| path.to_path_buf(), PathBuf::from)
}
