//! An image file and the texts in it.

use std::path::{Path, PathBuf};

use kiln_media::{ForeignSettings, ImageText, ImageTexts, Infotext, MAX_JSON};
use serde::Serialize;

use super::own::{self, OwnSettings};
use crate::error::Result;

/// The settings in an image.
#[derive(Debug, Clone, Serialize)]
pub struct ImageReport {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: &'static str,
    /// Width and height of a PNG.
    pub size: Option<(u32, u32)>,
    /// Kiln's own settings.
    pub kiln: Option<OwnSettings>,
    /// Fields of them that this version does not know.
    pub unknown: Vec<String>,
    /// AUTOMATIC1111's settings.
    pub parameters: Option<Infotext>,
    /// The location of those.
    pub place: Option<String>,
    /// The settings of other programs.
    pub others: Vec<ForeignSettings>,
    /// All texts unchanged.
    pub texts: Vec<ImageText>,
}

/// The keys of AUTOMATIC1111's text. Some programs write it into other fields of the Exif data.
const PARAMETERS: [&str; 4] = ["parameters", "UserComment", "ImageDescription", "Comment"];

impl ImageReport {
    /// Whether a path looks like an image file: by its first bytes or, if they are inconclusive, by its name.
    pub fn is_for(path: &Path) -> bool {
        ImageTexts::is_image(path)
    }

    /// Reads the settings in an image. Pixels are only read for hidden texts, if no other text is found.
    ///
    /// # Errors
    /// See [`ImageTexts::read`].
    pub fn read(path: &Path) -> Result<Self> {
        let is_enough = |texts: &[ImageText]| own_of(texts).is_some() || infotext_of(texts).is_some();
        let ImageTexts { format, size, texts } = ImageTexts::read(path, is_enough)?;
        let (kiln, unknown) = own_of(&texts).unzip();
        let (parameters, place) = infotext_of(&texts).unzip();
        Ok(Self {
            path: path.to_path_buf(),
            format,
            size,
            kiln,
            unknown: unknown.unwrap_or_default(),
            parameters,
            place,
            others: ForeignSettings::all(&texts),
            texts,
        })
    }
}

/// Kiln's own settings; `None` with a warning if they cannot be read.
fn own_of(texts: &[ImageText]) -> Option<(OwnSettings, Vec<String>)> {
    let text = texts.iter().find(|text| text.key == own::KEY)?;
    if text.text.len() > MAX_JSON {
        tracing::warn!("the chunk `kiln` has {} bytes, more than settings take; it is not read", text.text.len());
        return None;
    }
    OwnSettings::from_json(&text.text).inspect_err(|error| tracing::warn!("the chunk `kiln` is damaged: {error}")).ok()
}

/// AUTOMATIC1111's settings and their location.
fn infotext_of(texts: &[ImageText]) -> Option<(Infotext, String)> {
    let is_one = |text: &&ImageText| PARAMETERS.contains(&text.key.as_str()) || text.key.starts_with("stealth_");
    let found = texts.iter().filter(is_one).find_map(|text| Some((Infotext::parse(&text.text)?, text)))?;
    Some((found.0, format!("{}, {}", found.1.place, found.1.key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_testkit::shared_data;

    /// A FIFO would wait for a writer forever.
    #[cfg(unix)]
    #[test]
    fn a_device_is_not_an_image() {
        let error = ImageReport::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero"), "{error}");
        assert!(!ImageReport::is_for(Path::new("/dev/zero")));
    }

    /// Files of sd-parsers' tests with the results of that package.
    #[test]
    #[ignore = "needs ../shared/data"]
    fn shared_data_real_files_are_read() {
        let folder = shared_data("png_metadata");
        let read = |name: &str| ImageReport::read(&folder.join(name)).unwrap();
        let hidden = read("automatic1111_stealth.png");
        let found = hidden.parameters.unwrap();
        assert_eq!((&*found.prompt, &*found.negative_prompt), ("a circle", "a square"));
        assert_eq!(hidden.size, Some((64, 64)));
        for (key, value) in [
            ("Steps", "20"),
            ("Sampler", "Euler"),
            ("Schedule type", "Automatic"),
            ("CFG scale", "7"),
            ("Seed", "2015833630"),
            ("Size", "64x64"),
            ("Model hash", "15012c538f"),
            ("Model", "realisticVisionV51_v51VAE"),
            ("Clip skip", "2"),
            ("Version", "v1.9.4-169-ga30b19dd"),
        ] {
            assert_eq!(found.get(key), Some(value), "{key}");
        }
        assert_eq!(hidden.place.unwrap(), "hidden in pixels, stealth_pngcomp");
        for name in ["automatic1111_cropped.png", "automatic1111_cropped.jpg"] {
            let found = read(name);
            assert!(found.parameters.is_some_and(|found| found.get("Steps").is_some()), "{name}");
        }
        assert!(!read("text_after_idat.png").texts.is_empty());
        for name in ["empty_image.png", "empty_image.jpg"] {
            let found = read(name);
            assert!(found.parameters.is_none() && found.kiln.is_none() && found.others.is_empty(), "{name}");
        }
        let message = ImageReport::read(&folder.join("empty_file.png")).unwrap_err().to_string();
        assert!(message.contains("is empty"), "{message}");
    }
}
