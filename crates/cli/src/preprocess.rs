//! `kiln preprocess`: the map of an image that a ControlNet takes.

use std::io::Error as IoError;

use kiln_files::{FileRules, PlannedFile};
use kiln_media::{DecodeOptions, DecodedImage, Filter, Preprocessor, StillFormat, decode, encode};
use kiln_request::{Error, ImageSource};

use crate::failure::Result;
use crate::preprocess_args::{INPAINT, PreprocessArgs};

/// Runs the command.
pub fn run(args: &PreprocessArgs) -> Result<()> {
    let rules = FileRules { field: "output", what: "the map", extensions: &["png"], overwrite: args.overwrite };
    let output = PlannedFile::plan(&args.output, rules)?;
    let png = match args.preprocessor()? {
        Some(preprocessor) => {
            let image = read(&args.image)?;
            let map = preprocessor.run(image.rgb(), args.resolution).map_err(Error::from)?;
            encode(&map, StillFormat::Png).map_err(Error::from)?
        }
        None => args.inpaint()?,
    };
    output.write(|file| file.write_all(&png).map_err(IoError::other))?;
    if !output.is_standard_output() {
        crate::output::print(&format!("{}\n", output.path().display()));
    }
    Ok(())
}

fn read(path: &std::path::Path) -> Result<DecodedImage> {
    let source = ImageSource::from(path.to_path_buf());
    let bytes = source.read()?;
    Ok(decode(&bytes, &source.name(), &DecodeOptions::default()).map_err(Error::from)?)
}

impl PreprocessArgs {
    /// The preprocessor with its values; `None` for the one of masks.
    ///
    /// # Errors
    /// [`Error::Value`] for a value that it does not have, and for one out of range.
    fn preprocessor(&self) -> Result<Option<Preprocessor>> {
        let given = [
            ("low", self.low),
            ("high", self.high),
            ("threshold", self.threshold),
            ("sigma", self.sigma),
            ("factor", self.factor),
            ("resolution", self.resolution.map(|n| n as f64)),
        ];
        let has = |allowed: &[&str]| match given.iter().find(|(name, value)| value.is_some() && !allowed.contains(name))
        {
            Some(&(name, value)) => {
                let found = value.map_or_else(String::new, |value| value.to_string());
                Err(Error::Value { name, found, expected: format!("nothing with {}", self.name) })
            }
            None => Ok(()),
        };
        let level = |usual: f64| match self.threshold.unwrap_or(usual) {
            level if (0.0..=255.0).contains(&level) => Ok(level),
            found => {
                let expected = "a number from 0 to 255".into();
                Err(Error::Value { name: "threshold", found: found.to_string(), expected })
            }
        };
        let found = Preprocessor::find(&self.name);
        match found {
            Some(Preprocessor::Canny { .. }) => has(&["low", "high", "resolution"])?,
            Some(Preprocessor::Scribble { .. } | Preprocessor::Threshold { .. }) => has(&["threshold", "resolution"])?,
            Some(Preprocessor::Blur { .. }) => has(&["sigma", "resolution"])?,
            Some(Preprocessor::Tile { .. }) => has(&["factor"])?,
            Some(Preprocessor::Lineart | Preprocessor::ColorGrid) => has(&["resolution"])?,
            Some(Preprocessor::Invert) | None => has(&[])?,
        }
        if self.name != INPAINT
            && let Some(mask) = &self.mask
        {
            let (found, expected) = (mask.display().to_string(), format!("nothing with {}", self.name));
            return Err(Error::Value { name: "mask", found, expected }.into());
        }
        Ok(match found {
            Some(Preprocessor::Canny { low, high }) => {
                Some(Preprocessor::Canny { low: self.low.unwrap_or(low), high: self.high.unwrap_or(high) })
            }
            Some(Preprocessor::Scribble { threshold }) => Some(Preprocessor::Scribble { threshold: level(threshold)? }),
            Some(Preprocessor::Threshold { level: usual }) => {
                Some(Preprocessor::Threshold { level: level(f64::from(usual))? as u8 })
            }
            Some(Preprocessor::Blur { sigma }) => Some(Preprocessor::Blur { sigma: self.sigma.unwrap_or(sigma) }),
            Some(Preprocessor::Tile { factor }) => Some(Preprocessor::Tile { factor: self.factor.unwrap_or(factor) }),
            other => other,
        })
    }

    /// The image, transparent where the mask is white.
    fn inpaint(&self) -> Result<Vec<u8>> {
        let Some(path) = &self.mask else {
            let expected = "a mask with inpaint".into();
            return Err(Error::Value { name: "mask", found: "nothing".into(), expected }.into());
        };
        let (image, mask) = (read(&self.image)?, read(path)?.to_mask());
        let (width, height) = image.rgb().size();
        let mask = match mask.size() == (width, height) {
            true => mask,
            false => mask.resize(width, height, Filter::Lanczos3).map_err(Error::from)?,
        };
        let hole = mask.threshold(127).invert();
        let marked = image.rgb().with_alpha(&hole).map_err(Error::from)?;
        Ok(encode(&marked, StillFormat::Png).map_err(Error::from)?)
    }
}
