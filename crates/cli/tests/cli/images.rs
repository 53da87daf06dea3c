//! Reading the images that `kiln` wrote.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// A completely decoded PNG.
pub struct Picture {
    pub size: (u32, u32),
    /// The `parameters` text, as tEXt or as iTXt.
    pub parameters: Text,
    /// Kiln's own settings.
    pub settings: serde_json::Value,
    pub rgb: Vec<u8>,
}

/// A text of a PNG and the kind of its chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Text {
    /// tEXt.
    Latin1(String),
    /// iTXt.
    Utf8(String),
}

/// Decodes a PNG, or returns its error.
pub fn try_read(path: &Path) -> Result<Picture, String> {
    let decode = || -> Result<Picture, png::DecodingError> {
        let mut reader = png::Decoder::new(BufReader::new(File::open(path)?)).read_info()?;
        let mut pixels = vec![0; reader.output_buffer_size().unwrap_or_default()];
        reader.next_frame(&mut pixels)?;
        reader.finish()?;
        let info = reader.info();
        let latin1 = info.uncompressed_latin1_text.iter().filter(|chunk| chunk.keyword == "parameters");
        let mut texts: Vec<Text> = latin1.map(|chunk| Text::Latin1(chunk.text.clone())).collect();
        for chunk in info.utf8_text.iter().filter(|chunk| chunk.keyword == "parameters") {
            texts.push(Text::Utf8(chunk.get_text()?));
        }
        assert_eq!(texts.len(), 1, "{}: `parameters` {} times", path.display(), texts.len());
        let own =
            info.uncompressed_latin1_text.iter().find(|chunk| chunk.keyword == "kiln").map(|chunk| chunk.text.clone());
        let own = match (own, info.utf8_text.iter().find(|chunk| chunk.keyword == "kiln")) {
            (None, Some(chunk)) => chunk.get_text()?,
            (own, _) => own.unwrap_or_default(),
        };
        let settings = serde_json::from_str(&own).unwrap_or_else(|error| panic!("{}: {error}: {own}", path.display()));
        Ok(Picture { size: info.size(), parameters: texts.remove(0), settings, rgb: pixels })
    };
    decode().map_err(|error| format!("{}: {error}", path.display()))
}

/// Decodes a PNG.
#[track_caller]
pub fn read(path: &Path) -> Picture {
    try_read(path).unwrap_or_else(|error| panic!("{error}"))
}

/// The shape of the only tensor `latents` of a safetensors file, which must be complete and f32.
#[track_caller]
pub fn latents_shape(path: &Path) -> Vec<usize> {
    kiln_testkit::Fixture::read("latents", path).tensor("latents").dims().to_vec()
}
