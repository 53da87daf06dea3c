//! The images that are upscaled: where they come from, and the texts in their files.

use std::io::Cursor;

use kiln_media::{DecodeOptions, DecodedImage, ImageText, ImageTexts, Infotext, decode, is_png_key, quoted};
use kiln_request::ImageSource;
use kiln_scheduler::number_text;

use kiln_setup::error::Result;

/// An image that was read once.
pub(super) struct Input {
    pub(super) source: ImageSource,
    /// Width and height.
    pub(super) size: [usize; 2],
    /// The bytes of a file that cannot be read twice.
    bytes: Option<Vec<u8>>,
}

/// The keys of the text that says how an image was upscaled: AUTOMATIC1111's `modules/postprocessing.py` writes both.
const KEYS: [&str; 2] = ["postprocessing", "extras"];
/// The key of settings.
const PARAMETERS: &str = "parameters";
/// The field of Exif in which programs write settings.
const USER_COMMENT: &str = "UserComment";

impl Input {
    /// Reads and decodes an image, of which only the size is kept, so that many take no memory.
    pub(super) fn check(source: ImageSource) -> Result<Self> {
        let bytes = source.read()?;
        let image = decode(&bytes, &source.name(), &DecodeOptions::default())?;
        let size = [image.width(), image.height()];
        let bytes = (source == ImageSource::StandardInput).then_some(bytes);
        Ok(Self { source, size, bytes })
    }

    /// Reads the image again, and the texts in its file that a PNG can have.
    pub(super) fn open(&mut self) -> Result<(DecodedImage, Vec<ImageText>)> {
        let bytes = self.bytes.take().map_or_else(|| self.source.read(), Ok)?;
        let name = self.source.name();
        let image = decode(&bytes, &name, &DecodeOptions::default())?;
        if [image.width(), image.height()] != self.size {
            let problem = "has another size than when it was checked; another program has changed it".into();
            return Err(kiln_media::Error::Read { name, problem }.into());
        }
        Ok((image, texts(&bytes)))
    }
}

/// The texts of an image that is enlarged, keys and contents: those of the file `bytes` that a PNG can have, and those that say
/// how it was enlarged.
pub fn upscaled_texts(bytes: &[u8], scale: f64, upscaler: &str) -> Vec<(String, String)> {
    let kept = texts(bytes).into_iter().map(|text| (text.key, text.text));
    kept.chain(postprocessing(scale, upscaler).map(|(key, text)| (key.into(), text))).collect()
}

/// The texts in an image file that its upscaled image has.
fn texts(bytes: &[u8]) -> Vec<ImageText> {
    let texts = ImageTexts::read_from(&mut Cursor::new(bytes), |texts| !texts.is_empty());
    kept(texts.ok().flatten().map_or_else(Vec::new, |found| found.texts))
}

/// The texts of an image that its upscaled image keeps: texts of PNG under their keys, and settings from elsewhere as
/// `parameters`.
fn kept(texts: Vec<ImageText>) -> Vec<ImageText> {
    let keep = |text: ImageText| match &*text.place {
        "tEXt" | "zTXt" | "iTXt" => (is_png_key(&text.key) && !KEYS.contains(&&*text.key)).then_some(text),
        _ => {
            let is_settings = text.key == USER_COMMENT || Infotext::parse(&text.text).is_some();
            is_settings.then(|| ImageText { key: PARAMETERS.into(), ..text })
        }
    };
    texts.into_iter().filter_map(keep).collect()
}

/// The keys and the text that say how an image was upscaled, as AUTOMATIC1111's page Extras writes them.
pub(super) fn postprocessing(scale: f64, upscaler: &str) -> [(&'static str, String); 2] {
    let by = number_text(scale);
    let text = format!("Postprocess upscale by: {by}, Postprocess upscaler: {}", quoted(upscaler));
    KEYS.map(|key| (key, text.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_png_stay_and_settings_from_elsewhere_are_parameters() {
        let text =
            |place: &str, key: &str, text: &str| ImageText { place: place.into(), key: key.into(), text: text.into() };
        let settings = "an apple\nSteps: 20, Sampler: Euler a, Seed: 42";
        let found = kept(vec![
            text("tEXt", "parameters", "an apple"),
            text("iTXt", "kiln", "{}"),
            text("tEXt", "extras", "Postprocess upscale by: 2"),
            text("zTXt", "", "no key"),
            text("Exif", "UserComment", "an apple"),
            text("Exif", "Make", "a camera"),
            text("hidden in pixels", "stealth_pnginfo", settings),
        ]);
        let found: Vec<(&str, &str)> = found.iter().map(|text| (&*text.key, &*text.text)).collect();
        let expected =
            [("parameters", "an apple"), ("kiln", "{}"), ("parameters", "an apple"), ("parameters", settings)];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_text_is_automatic1111s() {
        let [(_, text), (key, _)] = postprocessing(4.0, "R-ESRGAN 4x+");
        assert_eq!((key, &*text), ("extras", "Postprocess upscale by: 4, Postprocess upscaler: R-ESRGAN 4x+"));
        assert!(postprocessing(1.5, "a,b")[0].1.ends_with("by: 1.5, Postprocess upscaler: \"a,b\""));
    }
}
