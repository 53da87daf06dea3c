//! The control images of a request: read, checked and fitted when it is resolved.

use std::path::PathBuf;
use std::sync::Arc;

use kiln_media::Rgb8Image;
use serde::Serialize;

use super::spec::ControlUse;
use crate::error::{Error, Result};
use crate::input::{FittedInput, fit_control};
use crate::options::Request;
use crate::settings::InputFile;

/// A control network of a job, with its image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Control {
    /// What the request says, without the image: images of one batch have their own.
    pub using: ControlUse,
    /// Red, green and blue in the size of the results.
    #[serde(skip)]
    pub image: Arc<Rgb8Image>,
    /// The image's file without its folder, where the request names one.
    #[serde(skip)]
    pub file: Option<InputFile>,
}

impl Control {
    /// A network for `image`, which has the size of the job's images.
    pub fn new(using: ControlUse, image: Rgb8Image) -> Self {
        Self { using: ControlUse { image: None, ..using }, image: Arc::new(image), file: None }
    }

    /// What makes the image again, with files named without their folders.
    pub(crate) fn request(&self) -> ControlUse {
        let net = self.using.net.file_name().map_or_else(|| self.using.net.clone(), PathBuf::from);
        ControlUse { net, image: self.file.as_ref().map(|file| file.file.name.clone().into()), ..self.using.clone() }
    }
}

impl Request {
    /// Reads the control images for results of `size`, width and height. `input` is the input image as the denoiser's
    /// encoder sees it.
    ///
    /// # Errors
    /// [`Error::Value`] for impossible values, and those of the files.
    pub(crate) fn prepare_controls(&self, size: (usize, usize), input: Option<&FittedInput>) -> Result<Vec<Control>> {
        let one = |(i, control): (usize, &ControlUse)| {
            let refuse = |found: String, expected: String| Error::Value { name: "controls", found, expected };
            if let Some((found, expected)) = control.problem() {
                return Err(refuse(found, expected));
            }
            let using = ControlUse { image: None, ..control.clone() };
            match (&control.image, input) {
                (Some(path), _) => {
                    let (image, file) = fit_control(path, i, control.resize, size, input)?;
                    Ok(Control { using, image: Arc::new(image), file: Some(file) })
                }
                (None, Some(input)) => Ok(Control { using, image: input.image.clone(), file: None }),
                (None, None) => {
                    let expected = "an `image` too, or an input image to take in its place".into();
                    Err(refuse(format!("net={}", control.net.display()), expected))
                }
            }
        };
        self.controls.iter().enumerate().map(one).collect()
    }
}
