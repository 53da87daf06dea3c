//! Settings by which images are paired: prompt, seed and size.

use std::path::Path;

use kiln_request::settings::formats;
use kiln_request::{ImageReport, Request};

use crate::error::{Error, Result};

/// The settings by which images are paired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageSettings {
    /// The prompt, without spaces around it.
    pub prompt: String,
    /// The seed of the image.
    pub seed: u64,
    /// Width and height as the settings say: those of the first pass, if there were two.
    pub size: [usize; 2],
}

/// Values in the text of an image.
struct Found {
    prompt: String,
    seed: Option<u64>,
    size: Option<[usize; 2]>,
}

impl ImageSettings {
    /// Reads them from an image of Kiln, AUTOMATIC1111, or another program whose settings Kiln takes.
    ///
    /// # Errors
    /// [`Error::Settings`] if there are none or one of the three is missing, [`Error::Request`] if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let Found { prompt, seed, size } = Found::read(path)?;
        let missing =
            |what: &str| Error::Settings { path: path.into(), problem: format!("its settings have no {what}") };
        let (seed, size) = (seed.ok_or_else(|| missing("seed"))?, size.ok_or_else(|| missing("size"))?);
        Ok(Self { prompt, seed, size })
    }
}

/// The prompt of an image.
///
/// # Errors
/// [`Error::Settings`] if the image has no settings, [`Error::Request`] if the file cannot be read.
pub(crate) fn prompt_of(path: &Path) -> Result<String> {
    Found::read(path).map(|found| found.prompt)
}

impl Found {
    fn read(path: &Path) -> Result<Self> {
        let none = |problem: String| Error::Settings { path: path.into(), problem };
        let ImageReport { kiln, parameters, texts, .. } = ImageReport::read(path)?;
        if let Some(own) = kiln {
            return Ok(Self::of(&own.request));
        }
        if let Some(text) = parameters {
            let prompt = text.prompt.trim().to_string();
            let seed = text.get("Seed").and_then(|seed| seed.trim().parse().ok());
            return Ok(Self { prompt, seed, size: text.get("Size").and_then(size) });
        }
        match formats::find(&texts) {
            Some((_, Ok(taken))) => Ok(Self::of(&taken.request)),
            Some((program, Err(problem))) => Err(none(format!("its settings of {program} are not taken: {problem}"))),
            None => Err(none("it has no settings".into())),
        }
    }

    fn of(request: &Request) -> Self {
        let size = request.width.zip(request.height).map(|(width, height)| [width, height]);
        Self { prompt: request.prompt.trim().to_string(), seed: request.seed, size }
    }
}

/// Width and height as AUTOMATIC1111 writes them: `512x768`.
fn size(text: &str) -> Option<[usize; 2]> {
    let (width, height) = text.split_once('x')?;
    Some([width.trim().parse().ok()?, height.trim().parse().ok()?])
}
