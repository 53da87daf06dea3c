//! The texts in an image file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use kiln_files::{Result, open_regular, read_error};
use serde::Serialize;

use crate::png_text::{self, PngTexts};
use crate::{exif, stealth};

/// A text in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageText {
    /// The location: the kind of the PNG chunk, the Exif data, or the pixels.
    pub place: String,
    /// Its key there.
    pub key: String,
    /// The text.
    pub text: String,
}

/// All texts in an image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTexts {
    /// The format: PNG, JPEG, WebP or AVIF.
    pub format: &'static str,
    /// Width and height of a PNG.
    pub size: Option<(u32, u32)>,
    /// The texts in the order of their discovery.
    pub texts: Vec<ImageText>,
}

/// The Exif data of larger files is not read, because a reader may use as much memory as the file size.
const MAX_FILE: u64 = 256 << 20;
/// The number of bytes that identify the format.
const HEAD: u64 = 16;

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Png,
    /// With Exif data.
    Other(&'static str),
}

impl Format {
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            head if head.starts_with(&png_text::SIGNATURE) => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Other("JPEG")),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Other("WebP")),
            [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f', ..] => Some(Self::Other("AVIF")),
            _ => None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Other(label) => label,
        }
    }
}

impl ImageTexts {
    /// Whether a path looks like an image file: by its first bytes or, if they are inconclusive, by its name.
    pub fn is_image(path: &Path) -> bool {
        let endings = ["png", "jpg", "jpeg", "webp", "avif"];
        let named =
            path.extension().is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)));
        let head = |mut file: File| head(&mut file);
        let by_bytes = || open_regular(path).and_then(head).is_ok_and(|head| Format::of(&head).is_some());
        path.is_file() && (named || by_bytes())
    }

    /// Reads the texts of a file: first the text chunks of a PNG; then, unless `is_enough` returns `true` for the texts
    /// so far, the Exif data; then, again unless they are enough, the hidden text in the pixels of a PNG.
    ///
    /// # Errors
    /// [`kiln_files::Error::Read`], also if the file has none of the formats.
    pub fn read(path: &Path, is_enough: impl Fn(&[ImageText]) -> bool) -> Result<Self> {
        let file = open_regular(path).map_err(read_error(path))?;
        let is_empty = file.metadata().is_ok_and(|file| file.len() == 0);
        let found = Self::read_from(&mut BufReader::new(file), is_enough).map_err(read_error(path))?;
        found.ok_or_else(|| {
            let problem = if is_empty { "is empty" } else { "is not a PNG, JPEG, WebP or AVIF file" };
            let problem = format!("{problem}; expected an image with settings");
            read_error(path)(std::io::Error::new(std::io::ErrorKind::InvalidData, problem))
        })
    }

    /// Reads an open file; `None` if it has none of the formats.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn read_from(
        file: &mut (impl BufRead + Seek),
        is_enough: impl Fn(&[ImageText]) -> bool,
    ) -> std::io::Result<Option<Self>> {
        let length = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let Some(format) = Format::of(&head(file)?) else { return Ok(None) };
        let (mut size, mut texts) = (None, Vec::new());
        if format == Format::Png {
            file.seek(SeekFrom::Start(png_text::SIGNATURE.len() as u64))?;
            PngTexts { size, texts } = png_text::read(file)?;
        }
        if !is_enough(&texts) && length <= MAX_FILE {
            file.rewind()?;
            texts.extend(exif::read(file));
        }
        if format == Format::Png && !is_enough(&texts) {
            file.rewind()?;
            texts.extend(stealth::read(file));
        }
        Ok(Some(Self { format: format.label(), size, texts }))
    }
}

/// The first bytes of a file, up to a maximum.
fn head(file: &mut (impl Read + Seek)) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(head)
}
